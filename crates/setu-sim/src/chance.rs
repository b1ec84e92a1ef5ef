//! Seeded random numbers: the same seed gives the same numbers on every machine.

use std::time::Duration;

/// A stream of random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The stream of a seed. `stream` separates several users of one seed.
    pub fn new(seed: u64, stream: &str) -> Self {
        let mut mixed = Self(seed);
        for byte in stream.bytes() {
            mixed.0 = mixed.0.wrapping_add(u64::from(byte));
            mixed.draw();
        }
        mixed
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw().checked_rem(bound).unwrap_or_default()
    }

    /// True with a probability of `per_thousand` in a thousand.
    pub fn happens(&mut self, per_thousand: u64) -> bool {
        self.below(1_000) < per_thousand
    }

    /// A duration of `from` to `to` milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to.saturating_sub(from).saturating_add(1)))
    }

    /// A random element; `None` if there are none.
    pub fn pick<'t, T>(&mut self, from: &'t [T]) -> Option<&'t T> {
        let index = self.below(from.len() as u64);
        usize::try_from(index).ok().and_then(|i| from.get(i))
    }
}
