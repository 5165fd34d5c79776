//! Instructions, counted by callgrind: the same on any machine of the kind, whatever else runs there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::ValueEnum;

use super::Bench;
use crate::report::{Column, Row, Spread, Table, Unit};
use crate::workload::Work;

/// How often the work is done in the shorter one of two runs. Their difference leaves out the start.
const ITERATIONS: u64 = 2_000;

/// By the name of the work.
type Counts = BTreeMap<String, u64>;

pub(super) fn measure(_: &Bench<'_>, saves: bool) -> Result<Vec<Table>, String> {
    let kept = read()?;
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
        let before = kept.get(name).map(|before| *before as f64);
        let change = before.map(|before| (each as f64 / before - 1.0) * 100.0);
        let cells = [Some(each as f64), before, change];
        rows.push((name.to_owned(), Row::Numbers(cells.map(Spread::of).into())));
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
            Column::new("kept", Unit::Count),
            Column::new("change %", Unit::Percent),
        ],
        rows,
        note: "Kept in bench/instructions.json; `--instructions --save` writes it. Up to a percent is chance: hash tables are seeded at random.",
    }])
}

/// Of a whole run.
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
        let said = String::from_utf8_lossy(&run.stderr);
        return Err(format!("valgrind failed: {said}"));
    }
    let counted = std::fs::read_to_string(&output).map_err(|error| error.to_string())?;
    let total = counted
        .lines()
        .find_map(|line| line.strip_prefix("totals: "));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.ok_or_else(|| "callgrind does not say how many instructions there were".to_owned())
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
