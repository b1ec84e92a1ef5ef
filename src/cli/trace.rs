//! `setu trace`: prints a gang's timeline, and the id or address of its trace.

use super::cluster::Connection;
use super::{CliError, find};
use crate::cli::render::{self, waterfall};

/// Width if standard output is not a terminal.
const WIDTH: usize = 140;
/// Placeholder for the trace id in an address.
const PLACE: &str = "{traceId}";

/// Shows when a gang was in which state, and how far each of its nodes came, and when.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  setu trace job/train -n team-a --trace-url 'http://localhost:16686/trace/{traceId}'")]
pub struct Args {
    /// Name of a Workload or of the Job it was made for, as NAME or KIND/NAME.
    workload: String,
    /// Earlier admissions too, as far as the journal goes back.
    #[arg(long)]
    all: bool,
    /// Address of a trace in your trace viewer, with {traceId} where the id belongs.
    #[arg(long, env = "SETU_TRACE_URL", value_name = "URL", value_parser = template)]
    trace_url: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

impl Args {
    /// Prints the timeline.
    pub async fn run(self) -> Result<(), CliError> {
        let cluster = self.connection.connect(false).await?;
        let objects = find::read(&cluster, &self.workload).await?;
        objects.notes.iter().for_each(|note| render::remark(note));
        let layout = waterfall::Layout {
            width: render::terminal_width().unwrap_or(WIDTH),
            everything: self.all,
            trace_url: self.trace_url.as_deref(),
        };
        let gangs = find::gangs(&cluster, &objects, &self.workload).await?;
        let texts: Vec<String> =
            gangs.iter().map(|gang| waterfall::waterfall(gang, objects.now, layout)).collect();
        render::show(&texts.join("\n"));
        Ok(())
    }
}

fn template(text: &str) -> Result<String, String> {
    let web = ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme));
    match (web, text.contains(PLACE)) {
        (true, true) => Ok(text.to_owned()),
        _ => Err(format!("write an http or https address with {PLACE} in it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_the_trace_id_placeholder_is_refused() {
        assert!(template("https://traces.example/trace/{traceId}?x=1").is_ok());
        for bad in ["https://traces.example/trace/", "traces.example/{traceId}", "javascript:{traceId}", ""] {
            assert!(template(bad).unwrap_err().contains("{traceId}"), "{bad}");
        }
    }
}
