//! Paths to the values of a policy, and what is found wrong with them.

use std::fmt;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathStep {
    /// Into a map.
    Key(String),
    /// Into a list.
    Index(usize),
}

/// The path from the root to a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<PathStep>);

impl Path {
    /// This path with one more key.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.step(PathStep::Key(key.to_owned()))
    }

    /// This path with one more index.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.step(PathStep::Index(index))
    }

    /// This path followed by another one.
    #[must_use]
    pub fn join(&self, other: &Self) -> Self {
        Self(self.0.iter().chain(&other.0).cloned().collect())
    }

    /// This path as a JSON pointer.
    pub fn pointer(&self) -> String {
        let step = |step: &PathStep| match step {
            PathStep::Key(key) => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
            PathStep::Index(index) => format!("/{index}"),
        };
        self.0.iter().map(step).collect()
    }

    fn step(&self, step: PathStep) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |key: &str| key.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        for (nth, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Key(key) if plain(key) && nth == 0 => f.write_str(key)?,
                PathStep::Key(key) if plain(key) => write!(f, ".{key}")?,
                PathStep::Key(key) => write!(f, "[{key:?}]")?,
                PathStep::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// A value that cannot be used, and why.
pub type Finding = (Path, String);

/// Findings in one line.
pub fn in_words(found: &[Finding]) -> String {
    let text: Vec<String> = found.iter().map(|(path, message)| format!("{path}: {message}")).collect();
    text.join("; ")
}
