//! Words for people.

use jiff::{RoundMode, Timestamp, TimestampRound, Unit};

/// A number of things: `1 node`, `4 nodes`.
pub fn counted(number: u32, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// Most of several names that are told one by one.
const TOLD: usize = 4;

/// Some names, and how many more there are: `a, b, c, d and 3 more`.
pub fn few<'w>(names: impl Iterator<Item = &'w str>) -> String {
    let names: Vec<&str> = names.collect();
    let told = names.iter().take(TOLD).copied().collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(TOLD);
    if more == 0 { told } else { format!("{told} and {more} more") }
}

/// A point in time as RFC 3339, cut to the second as every clock shows it.
pub fn to_the_second(time: Timestamp) -> String {
    let cut = TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Floor);
    time.round(cut).unwrap_or(time).to_string()
}

/// How much alike two words are, from 0 to 1, of which one may be meant for the other.
const ALIKE: f64 = 0.5;

/// The known word most like this one, if any is.
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
    fn a_time_is_cut_as_a_clock_that_shows_it_cuts() {
        let time: Timestamp = "2026-11-21T10:15:02.987Z".parse().unwrap();
        assert_eq!(to_the_second(time), "2026-11-21T10:15:02Z");
        assert!(to_the_second(time).contains(&time.strftime("%H:%M:%SZ").to_string()));
    }

    #[test]
    fn of_many_names_the_first_are_told_and_the_rest_counted() {
        assert_eq!(few(["a", "b"].into_iter()), "a, b");
        assert_eq!(few(["a", "b", "c", "d", "e", "f"].into_iter()), "a, b, c, d and 2 more");
    }

    #[test]
    fn one_thing_is_no_plural() {
        let told = [0, 1, 2].map(|number| counted(number, "node"));
        assert_eq!(told, ["0 nodes", "1 node", "2 nodes"]);
    }
}
