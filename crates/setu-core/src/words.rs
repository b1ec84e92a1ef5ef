//! Text for users.

use jiff::{RoundMode, Timestamp, TimestampRound, Unit};

/// A number of things: `1 node`, `4 nodes`.
pub fn counted(number: u32, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// Most names that are listed one by one.
const SHOWN: usize = 4;

/// Some names, and how many more there are: `a, b, c, d and 3 more`.
pub fn few<'w>(names: impl Iterator<Item = &'w str>) -> String {
    let names: Vec<&str> = names.collect();
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(SHOWN);
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

/// A point in time as RFC 3339, truncated to the second.
pub fn to_the_second(time: Timestamp) -> String {
    let cut = TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Floor);
    time.round(cut).unwrap_or(time).to_string()
}

/// The smallest similarity, from 0 to 1, at which one word is suggested for another.
const ALIKE: f64 = 0.5;

/// The most similar known word, if one is similar enough.
pub fn nearest<'w>(word: &str, known: &[&'w str]) -> Option<&'w str> {
    let likeness =
        |other: &str| strsim::normalized_damerau_levenshtein(&word.to_lowercase(), &other.to_lowercase());
    let best = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) >= ALIKE).then_some(*best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_truncated_to_the_second() {
        let time: Timestamp = "2026-11-21T10:15:02.987Z".parse().unwrap();
        assert_eq!(to_the_second(time), "2026-11-21T10:15:02Z");
        assert!(to_the_second(time).contains(&time.strftime("%H:%M:%SZ").to_string()));
    }

    #[test]
    fn the_first_names_are_listed_and_the_rest_counted() {
        assert_eq!(few(["a", "b"].into_iter()), "a, b");
        assert_eq!(few(["a", "b", "c", "d", "e", "f"].into_iter()), "a, b, c, d and 2 more");
    }

    #[test]
    fn only_one_is_singular() {
        let shown = [0, 1, 2].map(|number| counted(number, "node"));
        assert_eq!(shown, ["0 nodes", "1 node", "2 nodes"]);
    }
}
