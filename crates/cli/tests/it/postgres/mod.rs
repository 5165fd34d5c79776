//! Several real servers on one real Postgres: their guarantees hold while Postgres, the link to it, or one of them fails.

mod failing_over;
mod lost_postgres;
mod set_up;
mod sharing;
