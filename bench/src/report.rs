//! Tables of the results, as medians with their spread: Markdown for people, JSON for programs.

mod chart;
mod goal;

use std::fmt::Write as _;

use serde::{Serialize, Serializer};

pub(crate) use chart::svg;
pub(crate) use goal::{Goal, Limit};

/// The median and the range of all repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` without values.
    pub(crate) fn from_values(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        Some(Self { median, min, max })
    }
}

/// The unit of a number, which determines its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    PerSecond,
    Ratio,
    Micros,
    Count,
    Bytes,
    Percent,
    /// The rows have different units.
    OfRow,
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::PerSecond | Self::Bytes => rounded(value),
            Self::Ratio => format!("{value:.2}"),
            Self::Micros if value < 100.0 => format!("{value:.1}"),
            Self::Micros => rounded(value),
            Self::Count if value < 100.0 => format!("{value:.1}"),
            Self::Count => format!("{value:.0}"),
            Self::Percent => format!("{value:.1}"),
            Self::OfRow => value.to_string(),
        }
    }
}

fn rounded(value: f64) -> String {
    match value {
        10_000_000.0.. => format!("{:.1}M", value / 1e6),
        100_000.0.. => format!("{:.0}k", value / 1e3),
        10_000.0.. => format!("{:.1}k", value / 1e3),
        _ => format!("{value:.0}"),
    }
}

/// A column of numbers.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    /// Whether the text also shows the smallest and the largest value.
    pub(crate) shows_spread: bool,
}

impl Column {
    pub(crate) const fn new(name: &'static str, unit: Unit) -> Self {
        Self {
            name,
            unit,
            shows_spread: false,
        }
    }

    pub(crate) const fn with_spread(name: &'static str, unit: Unit) -> Self {
        Self {
            name,
            unit,
            shows_spread: true,
        }
    }

    fn show(&self, cell: Option<Spread>) -> String {
        let Some(spread) = cell else {
            return "–".to_owned();
        };
        let [median, min, max] = [spread.median, spread.min, spread.max].map(|v| self.unit.show(v));
        if self.shows_spread && min != max {
            format!("{median} ({min}–{max})")
        } else {
            median
        }
    }
}

/// The result of a variant.
#[derive(Debug, Clone)]
pub(crate) enum Row {
    /// A number for each column; `None` where nothing was measured.
    Numbers(Vec<Option<Spread>>),
    /// A row of a table with [`Goal::COLUMNS`].
    Goal(Goal),
    /// Why there are no numbers.
    Reason(String),
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Numbers(cells) => cells.serialize(serializer),
            Self::Goal(goal) => goal.serialize(serializer),
            Self::Reason(reason) => reason.serialize(serializer),
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Table {
    pub(crate) section: &'static str,
    pub(crate) title: String,
    /// What a row stands for, as the head of the first column.
    pub(crate) rows_are: &'static str,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<(String, Row)>,
    /// What a reader needs to know to interpret the table.
    pub(crate) note: &'static str,
}

impl Table {
    /// Markdown that is also readable as plain text.
    pub(crate) fn text(&self) -> String {
        let mut lines = vec![vec![self.rows_are.to_owned()]];
        lines[0].extend(self.columns.iter().map(|column| column.name.to_owned()));
        for (label, row) in &self.rows {
            let mut cells = vec![label.clone()];
            match row {
                Row::Numbers(numbers) => {
                    let shown = self.columns.iter().zip(numbers);
                    cells.extend(shown.map(|(column, cell)| column.show(*cell)));
                }
                Row::Goal(goal) => cells.extend(goal.cells()),
                Row::Reason(reason) => {
                    cells.push(reason.replace(['\n', '|'], " "));
                    cells.resize(self.columns.len() + 1, String::new());
                }
            }
            lines.push(cells);
        }
        // A reason is longer than any number, and must not widen its column.
        let width = |column: usize| {
            let cells = lines
                .iter()
                .filter(|cells| cells.last().is_some_and(|last| !last.is_empty()));
            cells
                .map(|cells| cells[column].chars().count())
                .max()
                .unwrap_or_default()
        };
        let widths: Vec<usize> = (0..=self.columns.len()).map(width).collect();
        let mut text = format!("### {}\n\n", self.title);
        for (number, cells) in lines.iter().enumerate() {
            for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                let _ = match column {
                    0 => write!(text, "| {cell:<width$} |"),
                    _ => write!(text, " {cell:>width$} |"),
                };
            }
            text.push('\n');
            if number == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let start = if column == 0 { "|" } else { "" };
                    let end = if column == 0 { "-" } else { ":" };
                    let _ = write!(text, "{start}-{}{end}|", "-".repeat(*width));
                }
                text.push('\n');
            }
        }
        if !self.note.is_empty() {
            let _ = write!(text, "\n{}\n", self.note);
        }
        text
    }

    /// The numbers of a cell, by the label of its row.
    #[cfg(test)]
    fn cell(&self, label: &str, column: usize) -> Option<Spread> {
        let row = self.rows.iter().find(|(name, _)| name == label);
        match row {
            Some((_, Row::Numbers(cells))) => cells[column],
            _ => None,
        }
    }
}

/// The results of a whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: crate::machine::Machine,
    pub(crate) command: String,
    pub(crate) tables: Vec<Table>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_that_of_all_repetitions() {
        let spread = Spread::from_values([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.0, 3.0));
        assert_eq!(Spread::from_values([4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(Spread::from_values([]), None);
    }

    #[test]
    fn a_table_is_markdown() {
        let table = Table {
            section: "floors",
            title: "Floors".to_owned(),
            rows_are: "server",
            columns: vec![
                Column::with_spread("requests/s", Unit::PerSecond),
                Column::new("p50 µs", Unit::Micros),
            ],
            rows: vec![
                (
                    "hyper".to_owned(),
                    Row::Numbers(vec![Spread::from_values([50e3, 52e3]), None]),
                ),
                ("etcd".to_owned(), Row::Reason("not installed".to_owned())),
            ],
            note: "",
        };
        let expected = "\
### Floors

| server |           requests/s | p50 µs |
|--------|---------------------:|-------:|
| hyper  | 51.0k (50.0k–52.0k) |      – |
| etcd   | not installed |        |
";
        let squeeze = |text: &str| text.replace([' ', '-'], "");
        assert_eq!(squeeze(&table.text()), squeeze(expected));
        assert_eq!(table.cell("hyper", 0).unwrap().median, 51e3);
    }
}
