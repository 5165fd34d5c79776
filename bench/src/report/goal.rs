//! Goals: a number that should stay within a limit, with the two measurements that it is computed from.

use serde::Serialize;

use super::{Column, Spread, Unit};

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Goal {
    pub(crate) measured: Option<Spread>,
    pub(crate) unit: Unit,
    pub(crate) limit: Limit,
    pub(crate) ours: Option<Spread>,
    /// What our result is compared with.
    pub(crate) reference: Option<Spread>,
    /// The unit of `ours` and `reference`.
    pub(crate) unit_of_both: Unit,
}

impl Goal {
    pub(crate) const COLUMNS: [Column; 5] = [
        Column::new("measured", Unit::OfRow),
        Column::new("goal", Unit::OfRow),
        Column::new("met", Unit::OfRow),
        Column::new("ours", Unit::OfRow),
        Column::new("reference", Unit::OfRow),
    ];

    /// Whether the median is within the limit; `None` if nothing was measured.
    fn is_met(&self) -> Option<bool> {
        let median = self.measured?.median;
        Some(match self.limit {
            Limit::AtMost(limit) => median <= limit,
            Limit::AtLeast(limit) => median >= limit,
        })
    }

    pub(super) fn cells(&self) -> [String; 5] {
        let of_both = Column::new("", self.unit_of_both);
        [
            Column::with_spread("", self.unit).show(self.measured),
            match self.limit {
                Limit::AtMost(limit) => format!("≤ {}", self.unit.show(limit)),
                Limit::AtLeast(limit) => format!("≥ {}", self.unit.show(limit)),
            },
            self.is_met()
                .map_or("–", |is_met| if is_met { "yes" } else { "no" })
                .to_owned(),
            of_both.show(self.ours),
            of_both.show(self.reference),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_by_the_median() {
        let cells = |limit, values: [f64; 3]| {
            let goal = Goal {
                measured: Spread::from_values(values),
                unit: Unit::Ratio,
                limit,
                ours: Spread::from_values([30.0]),
                reference: None,
                unit_of_both: Unit::Micros,
            };
            goal.cells().join(" | ")
        };
        assert_eq!(
            cells(Limit::AtMost(4.0), [3.0, 3.5, 4.5]),
            "3.50 (3.00–4.50) | ≤ 4.00 | yes | 30.0 | –"
        );
        assert_eq!(
            cells(Limit::AtLeast(0.4), [0.3, 0.3, 0.5]),
            "0.30 (0.30–0.50) | ≥ 0.40 | no | 30.0 | –"
        );
    }
}
