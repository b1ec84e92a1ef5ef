//! Renders reports as text. Pure: the time and the width are parameters.
//!
//! Rule: text from the cluster is sanitized before it reaches a terminal. The text always has color;
//! [`show`] strips it if there is no terminal or NO_COLOR is set.

pub mod explanation;
pub mod summary;
pub mod table;
pub mod waterfall;

use crate::gang::StateName;
use anstyle::{AnsiColor, Style};
use jiff::{SignedDuration, Timestamp};

/// Style of secondary text.
pub const DIM: Style = Style::new().dimmed();
/// Style of headings.
pub const BOLD: Style = Style::new().bold();

/// Prints to standard output, with color where supported. Returns false if the reader is gone.
pub fn show(text: &str) -> bool {
    use std::io::Write as _;
    let mut out = anstream::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

/// Prints a remark to standard error, so that piped output stays clean.
pub fn remark(text: &str) {
    anstream::eprintln!("{}", paint(DIM, &clean(text)));
}

/// Width of the terminal; `None` if standard output is not a terminal.
pub fn terminal_width() -> Option<usize> {
    terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| usize::from(width.0))
}

/// Text in a style.
pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// Style of a state, by what it means for the user who waits.
pub fn style_of(state: Option<StateName>) -> Style {
    let color = |color: AnsiColor| Style::new().fg_color(Some(color.into()));
    match state {
        Some(StateName::Approved) => color(AnsiColor::Green),
        Some(StateName::Validating | StateName::Provisioning | StateName::WaitingReady) => {
            color(AnsiColor::Cyan)
        }
        Some(StateName::BackingOff | StateName::RollingBack | StateName::Yielded) => color(AnsiColor::Yellow),
        Some(StateName::Rejected) => color(AnsiColor::Red),
        Some(StateName::Released) | None => DIM,
    }
}

/// Turns text from the cluster into one line that cannot move the cursor or change colors.
pub fn clean(text: &str) -> String {
    let invisible = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if c == '\n' || c == '\t' { ' ' } else { c }).filter(|c| !invisible(*c)).collect()
}

/// A duration in its two largest units: `12s`, `3m20s`, `5h`, `2d4h`.
pub fn span(span: SignedDuration) -> String {
    let seconds = span.as_secs().max(0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let two = |big: i64, unit: &str, small: i64, smaller: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{smaller}") }
    };
    match (days, hours, minutes) {
        (0, 0, 0) if span.as_millis() > 0 && seconds < 1 => format!("{}ms", span.as_millis()),
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => two(minutes, "m", seconds % 60, "s"),
        (0, ..) => two(hours, "h", minutes, "m"),
        _ => two(days, "d", hours, "h"),
    }
}

/// A point in time as `10:04:30Z (in 3m20s)`, with the date if it is on another day.
pub fn moment(at: Timestamp, now: Timestamp) -> String {
    let format = if at.to_string().get(..10) == now.to_string().get(..10) {
        "%H:%M:%SZ"
    } else {
        "%Y-%m-%d %H:%M:%SZ"
    };
    let clock = at.strftime(format);
    let distance = at.duration_since(now);
    if distance.is_negative() {
        format!("{clock} ({} ago)", span(-distance))
    } else {
        format!("{clock} (in {})", span(distance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_its_two_largest_units() {
        let shown = |ms: i64| span(SignedDuration::from_millis(ms));
        let cases = [
            (0, "0s"),
            (80, "80ms"),
            (1_999, "1s"),
            (60_000, "1m"),
            (200_000, "3m20s"),
            (18_000_000, "5h"),
            (187_200_000, "2d4h"),
            (-5, "0s"),
        ];
        for (ms, expected) in cases {
            assert_eq!(shown(ms), expected);
        }
    }

    #[test]
    fn text_of_a_tenant_cannot_drive_the_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\r\nc\u{9b}2J\u{202e}d"), "a[31mb c2Jd");
    }
}
