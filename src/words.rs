//! Words for people.

/// A number of things: `1 node`, `4 nodes`.
pub fn counted(number: u32, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_no_plural() {
        let told = [0, 1, 2].map(|number| counted(number, "node"));
        assert_eq!(told, ["0 nodes", "1 node", "2 nodes"]);
    }
}
