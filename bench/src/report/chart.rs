//! A bar chart of a run: a bar for each row, with a line from the smallest to the largest value.

use std::fmt::Write as _;

use super::{Row, Table, Unit};

const LABEL: f64 = 330.0;
const BAR: f64 = 420.0;
const NUMBER: f64 = 150.0;
const LINE: f64 = 20.0;

/// One SVG with a group of bars for each table.
pub(crate) fn svg(tables: &[Table]) -> String {
    let mut bars = String::new();
    let mut top = 10.0;
    for table in tables {
        // Rows with different units have no common scale.
        if table
            .columns
            .iter()
            .any(|column| column.unit == Unit::OfRow)
        {
            continue;
        }
        // The chart shows the ratio, if the table has one.
        let is_ratio = |column: &super::Column| column.unit == Unit::Ratio;
        let column = table.columns.iter().position(is_ratio).unwrap_or(0);
        top += LINE;
        let name = table.columns.get(column).map_or("", |column| column.name);
        let title = escape(&format!("{} – {name}", table.title));
        let _ = writeln!(
            bars,
            r#"<text class="title" x="10" y="{top}">{title}</text>"#
        );
        let numbers = table.rows.iter().filter_map(|(label, row)| match row {
            Row::Numbers(cells) => cells
                .get(column)
                .copied()
                .flatten()
                .map(|cell| (label, cell)),
            Row::Goal(_) | Row::Reason(_) => None,
        });
        let numbers: Vec<_> = numbers.collect();
        let largest = numbers
            .iter()
            .map(|(_, cell)| cell.max)
            .fold(f64::MIN_POSITIVE, f64::max);
        for (label, cell) in numbers {
            top += LINE;
            let scaled = |value: f64| value / largest * BAR;
            let (width, from, to) = (scaled(cell.median), scaled(cell.min), scaled(cell.max));
            let (label, shown) = (escape(label), table.columns[column].unit.show(cell.median));
            let (middle, bar_top, text_x) = (top - 5.0, top - 12.0, LABEL + to + 8.0);
            let _ = writeln!(
                bars,
                r#"<text class="label" x="{LABEL}" y="{top}" dx="-8">{label}</text>
<rect x="{LABEL}" y="{bar_top}" width="{width:.1}" height="14"/>
<line x1="{:.1}" x2="{:.1}" y1="{middle}" y2="{middle}"/>
<text x="{text_x:.1}" y="{top}">{shown}</text>"#,
                LABEL + from,
                LABEL + to,
            );
        }
        top += LINE;
    }
    let (width, height) = (LABEL + BAR + NUMBER, top + 10.0);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">
<style>
text {{ font: 13px sans-serif; fill: #222 }} .title {{ font-weight: bold }} .label {{ text-anchor: end }}
rect {{ fill: #4c78a8 }} line {{ stroke: #222 }}
</style>
<rect width="{width}" height="{height}" style="fill: #fff"/>
{bars}</svg>
"##
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
