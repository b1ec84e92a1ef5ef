//! Compares the cost of nodes with the cost of alternatives: lowest with lowest, and highest with highest.

use super::Cost;
use std::cmp::Ordering::{Equal, Greater, Less};

impl Cost {
    /// The range from the lowest to the highest hourly cost, such as `5.68 to 16.29`.
    pub fn range(&self) -> String {
        let (least, most) = (self.at_least.to_string(), self.at_most.to_string());
        if least == most { most } else { format!("{least} to {most}") }
    }

    /// Clause after a comma: the hourly cost of these nodes and of the `other` ones that would be bought otherwise, and which are
    /// cheaper. If some price of either is unknown, it is [`Cost::clause`].
    pub fn instead_of(&self, other: &Self) -> String {
        if self.known().and(other.known()).is_none() {
            return self.clause();
        }
        let order = (self.at_least.cmp(&other.at_least), self.at_most.cmp(&other.at_most));
        let which = match order {
            (Equal, Equal) => return self.clause(),
            (Less | Equal, Less | Equal) => "cheaper",
            (Greater | Equal, Greater | Equal) => "more expensive",
            (Less, Greater) => "cheaper at the lowest price, and more expensive at the highest",
            (Greater, Less) => "more expensive at the lowest price, and cheaper at the highest",
        };
        format!(", {} {} an hour instead of {}: {which}", self.range(), self.currency, other.range())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(least: &str, most: &str) -> Cost {
        Cost {
            at_least: least.parse().unwrap(),
            at_most: most.parse().unwrap(),
            priced: 1,
            ..Cost::default()
        }
    }

    #[test]
    fn least_is_compared_with_least_and_most_with_most() {
        let here = cost("5.68", "16.29");
        for (least, most, words) in [
            (
                "4.02",
                "65.16",
                ", 4.02 to 65.16 USD an hour instead of 5.68 to 16.29: cheaper at the lowest price, and more expensive at the highest",
            ),
            ("4", "4", ", 4 USD an hour instead of 5.68 to 16.29: cheaper"),
            ("5.68", "20", ", 5.68 to 20 USD an hour instead of 5.68 to 16.29: more expensive"),
            (
                "6",
                "7",
                ", 6 to 7 USD an hour instead of 5.68 to 16.29: more expensive at the lowest price, and cheaper at the highest",
            ),
            ("5.68", "16.29", ", at most 16.29 USD an hour"),
        ] {
            assert_eq!(cost(least, most).instead_of(&here), words);
        }
        let unknown = Cost { priced: 0, unpriced: 1, ..here.clone() };
        assert_eq!(here.instead_of(&unknown), ", at most 16.29 USD an hour");
    }
}
