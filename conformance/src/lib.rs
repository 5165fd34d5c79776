//! Language-neutral vectors of the wire contract, and a runner that plays them against any server.
//!
//! A vector is a JSON file: requests, and patterns that the answers must match. `conformance/README.md`
//! specifies the format, which is small enough for a runner in another language. This one is a library; the
//! command `forrst conformance` is built on it.
//!
//! ```no_run
//! # async fn example() -> Result<(), forrst_conformance::RunError> {
//! use forrst_conformance::{Options, run};
//!
//! let report = run("http://127.0.0.1:7420", &Options::default()).await?;
//! println!("{report}");
//! assert_eq!(report.counts().failed, 0);
//! # Ok(())
//! # }
//! ```

mod catalogue;
mod check;
mod client;
mod mismatch;
mod pattern;
mod play;
mod report;
mod rules;
mod run;
mod template;
mod time;
mod transport;
mod vector;

pub use catalogue::{CatalogueError, embedded, in_folder};
pub use client::{ClientVector, ClientVectorError, Stub, StubVerdict, embedded_client_vectors};
pub use mismatch::Mismatch;
pub use pattern::PatternError;
pub use play::Failure;
pub use report::{Counts, Outcome, Report, Verdict};
pub use run::{Options, RunError, run, run_in_turn};
pub use template::TemplateError;
pub use transport::{ApiKey, UrlError};
pub use vector::{Profile, StepError, Transport, Vector, VectorError};
