//! Selects scenarios by part of their title.

/// Whether `part` selects the scenario with this title. An empty part selects nothing.
pub fn asks_for(part: Option<&str>, title: &str) -> bool {
    part.is_some_and(|part| !part.is_empty() && title.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_part_of_a_title_selects_nothing() {
        assert!(!asks_for(None, "256 machines, measured"));
        assert!(!asks_for(Some(""), "256 machines, measured"));
        assert!(asks_for(Some("measured"), "256 machines, measured"));
        assert!(!asks_for(Some("8 machines:"), "256 machines, measured"));
    }
}
