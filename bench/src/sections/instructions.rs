//! Instruction counts by callgrind: unlike times, they do not depend on the load of the machine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::ValueEnum;

use super::Bench;
use crate::report::{Column, Row, Spread, Table, Unit};
use crate::workload::Work;

/// The iterations of the shorter of two runs. The difference of the two leaves out the start of the process.
const ITERATIONS: u64 = 2_000;

/// Instructions of one iteration, by the name of the work.
type Counts = BTreeMap<String, u64>;

pub(super) fn measure(_: &Bench<'_>, saves: bool) -> Result<Vec<Table>, String> {
    let saved = read()?;
    let mut counts = Counts::new();
    let mut rows = Vec::new();
    let is_installed = Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    let is_installed = is_installed.is_ok_and(|status| status.success());
    for work in Work::value_variants() {
        let value = work.to_possible_value().expect("no work is skipped");
        let name = value.get_name();
        if !is_installed {
            let reason = "not counted: `apt-get install valgrind` and run it again";
            rows.push((name.to_owned(), Row::Reason(reason.to_owned())));
            continue;
        }
        let (short, long) = (count(name, ITERATIONS)?, count(name, 2 * ITERATIONS)?);
        let each = long.saturating_sub(short) / ITERATIONS;
        counts.insert(name.to_owned(), each);
        let before = saved.get(name).map(|before| *before as f64);
        let change = before.map(|before| (each as f64 / before - 1.0) * 100.0);
        let cells = [Some(each as f64), before, change];
        rows.push((
            name.to_owned(),
            Row::Numbers(cells.map(Spread::from_values).into()),
        ));
    }
    if saves && is_installed {
        write(&counts)?;
    }
    Ok(vec![Table {
        section: "instructions",
        title: "Instructions of one operation, by callgrind".to_owned(),
        rows_are: "work",
        columns: vec![
            Column::new("instructions", Unit::Count),
            Column::new("saved", Unit::Count),
            Column::new("change %", Unit::Percent),
        ],
        rows,
        note: "`saved` is from bench/instructions.json, which `--instructions --save` writes. Counts vary by up to a percent, because hash tables have random seeds.",
    }])
}

/// The instructions of a whole run.
fn count(work: &str, iterations: u64) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let output = folder.path().join("callgrind");
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", output.display()))
        .arg(program)
        .args(["workload", work, &iterations.to_string()])
        .output()
        .map_err(|error| format!("cannot run valgrind: {error}"))?;
    if !run.status.success() {
        let errors = String::from_utf8_lossy(&run.stderr);
        return Err(format!("valgrind failed: {errors}"));
    }
    let counted = std::fs::read_to_string(&output).map_err(|error| error.to_string())?;
    let total = counted
        .lines()
        .find_map(|line| line.strip_prefix("totals: "));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.ok_or_else(|| "the output of callgrind has no total".to_owned())
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("instructions.json")
}

fn read() -> Result<Counts, String> {
    let path = path();
    match std::fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|error| format!("{} cannot be read: {error}", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Counts::new()),
        Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
    }
}

fn write(counts: &Counts) -> Result<(), String> {
    let text = serde_json::to_string_pretty(counts).map_err(|error| error.to_string())?;
    let path = path();
    std::fs::write(&path, text + "\n")
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}
