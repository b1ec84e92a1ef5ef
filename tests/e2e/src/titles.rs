//! Which scenarios a part of a title selects.

/// Whether a scenario of this title is asked for by name: an empty part asks for nothing.
pub fn asks_for(part: Option<&str>, title: &str) -> bool {
    part.is_some_and(|part| !part.is_empty() && title.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_part_of_a_title_asks_for_nothing() {
        assert!(!asks_for(None, "256 machines, measured"));
        assert!(!asks_for(Some(""), "256 machines, measured"));
        assert!(asks_for(Some("measured"), "256 machines, measured"));
        assert!(!asks_for(Some("8 machines:"), "256 machines, measured"));
    }
}
