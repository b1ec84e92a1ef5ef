//! A gang's state as others see it: the verdict that Kueue gets, the check's message, Events, and explanations.

pub mod explain;
pub mod message;
pub mod notice;
pub mod verdict;
