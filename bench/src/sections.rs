//! The sections of the benchmark, one module each, and how they are run and reported.

mod command_stats;
mod floors;
mod instructions;
mod ours;
mod peers;
mod postgres;
mod redis;
mod scale;
mod store_cost;
mod strace;
mod variants;

use std::sync::Arc;

use clap::ValueEnum;
use forrst_testkit::{RedisOptions, RedisServer};
use tokio::runtime::Runtime;

use crate::machine::Machine;
use crate::options::{Arguments, Effort, Section};
use crate::report::{Report, Table, svg};
use crate::serve::{ServerProcess, Store};

/// The number of callers in most tables.
const CALLERS: usize = 64;

/// Measures the sections that were selected.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    if arguments.list {
        list();
        return Ok(());
    }
    let runtime = Runtime::new().map_err(|error| format!("cannot start: {error}"))?;
    let sections = match &arguments.sections[..] {
        _ if arguments.instructions => vec![Section::Instructions],
        [] => Section::value_variants().to_vec(),
        chosen => chosen.to_vec(),
    };
    let prints_json = arguments
        .json
        .as_ref()
        .is_some_and(|path| path.as_os_str() == "-");
    let mut report = Report {
        machine: Machine::detect(),
        command: std::env::args()
            .skip(1)
            .fold("forrst-bench".to_owned(), |all, argument| {
                all + " " + &argument
            }),
        tables: Vec::new(),
    };
    if !prints_json {
        println!("{}\n`{}`\n", report.machine.text(), report.command);
    }
    for section in sections {
        let started = std::time::Instant::now();
        let bench = Bench {
            effort: &arguments.effort,
        };
        let tables = runtime.block_on(bench.measure(section, arguments.save));
        let tables = tables.map_err(|error| format!("{}: {error}", section.name()))?;
        if !prints_json {
            for table in &tables {
                println!("{}", table.text());
            }
        }
        eprintln!(
            "{}: {:.0} s",
            section.name(),
            started.elapsed().as_secs_f64()
        );
        report.tables.extend(tables);
    }
    write(arguments, &report, prints_json)
}

fn write(arguments: &Arguments, report: &Report, prints_json: bool) -> Result<(), String> {
    let json = serde_json::to_string_pretty(report).map_err(|error| error.to_string())?;
    let save = |path: &std::path::Path, text: &str| {
        let failed = |error| format!("cannot write {}: {error}", path.display());
        std::fs::write(path, text).map_err(failed)
    };
    match &arguments.json {
        Some(_) if prints_json => println!("{json}"),
        Some(path) => save(path, &json)?,
        None => {}
    }
    if let Some(path) = &arguments.chart {
        save(path, &svg(&report.tables))?;
    }
    Ok(())
}

fn list() {
    for section in Section::value_variants() {
        let value = section.to_possible_value().expect("no section is skipped");
        let help = value
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        println!("{:<13} {help}", value.get_name());
    }
}

/// The settings of a run.
struct Bench<'a> {
    effort: &'a Effort,
}

impl Bench<'_> {
    async fn measure(&self, section: Section, saves: bool) -> Result<Vec<Table>, String> {
        match section {
            Section::Floors => floors::measure(self).await,
            Section::Ours => ours::measure(self).await,
            Section::Peers => peers::measure(self).await,
            Section::Scale => scale::measure(self).await,
            Section::Instructions => instructions::measure(self, saves),
            Section::StoreCost => store_cost::measure(self).await,
            Section::Redis => redis::measure(self).await,
            Section::Postgres => postgres::measure(self).await,
        }
    }
}

/// Redis with a common production setting: its log is flushed to disk every second.
struct Redis {
    server: RedisServer,
    pid: u32,
}

impl Redis {
    fn start() -> Result<Self, String> {
        let options = RedisOptions::default().arguments(&["--appendfsync", "everysec"]);
        let server = options.start();
        let info = server.cli(&["INFO", "server"]);
        let pid = info
            .lines()
            .find_map(|line| line.strip_prefix("process_id:"));
        let pid = pid.and_then(|pid| pid.trim().parse().ok());
        let pid = pid.ok_or("INFO of Redis has no process_id")?;
        Ok(Self { server, pid })
    }

    fn url(&self) -> String {
        self.server.url()
    }

    fn store(&self) -> Store {
        Store::Redis { url: self.url() }
    }
}

fn forrst(store: &Store) -> Result<Arc<ServerProcess>, String> {
    ServerProcess::forrst(store).map(Arc::new)
}
