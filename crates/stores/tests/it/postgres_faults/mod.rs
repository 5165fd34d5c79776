//! A Postgres that fails, and one that is not fit for locks.

mod blocked;
mod full_disk;
mod late_commits;
