//! Whether a store is fit for locks, and the creation of its tables where it has any.

use forrst_lock::StoreError;

use super::{OpenError, OpenOptions, open};

/// What [`check`] has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checked {
    /// What can lose locks, each as one sentence.
    pub problems: Vec<String>,
    /// What else to know.
    pub notes: Vec<String>,
}

/// Why a store cannot be checked or migrated.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It was opened, and does not work.
    #[error(transparent)]
    Failing(#[from] StoreError),
    /// It has no tables.
    #[error("only a Postgres store has tables to create: this is `{0}`")]
    NothingToMigrate(String),
}

/// Checks whether a store can be used, and what is unsafe about it. Nothing is kept in it, and the tables of a Postgres are not created.
///
/// # Errors
///
/// When it cannot be used.
pub async fn check(url: &str, options: &OpenOptions) -> Result<Checked, CheckError> {
    match url.split_once(':').map(|(scheme, _)| scheme) {
        #[cfg(feature = "postgres")]
        Some("postgres" | "postgresql") => {
            let postgres = super::postgres_options(options);
            let checked = crate::PostgresStore::check(url, &postgres).await;
            Ok(checked.map_err(OpenError::from)?)
        }
        #[cfg(feature = "memory")]
        Some("memory") => {
            works(url, options).await?;
            let problem = "locks are in the memory of one server: all are lost when it ends";
            Ok(Checked {
                problems: vec![problem.to_owned()],
                notes: Vec::new(),
            })
        }
        _ => {
            let mut strict = options.clone();
            #[cfg(feature = "redis")]
            {
                strict.redis.strict = true;
            }
            match works(url, &strict).await {
                #[cfg(feature = "redis")]
                Err(CheckError::Open(OpenError::Redis(crate::RedisError::Unsafe(problems)))) => {
                    Ok(Checked {
                        problems,
                        notes: Vec::new(),
                    })
                }
                works => works.map(|()| Checked::default()),
            }
        }
    }
}

async fn works(url: &str, options: &OpenOptions) -> Result<(), CheckError> {
    let store = open(url, options).await?;
    let healthy = store.health().await;
    store.close().await;
    Ok(healthy?)
}

/// Creates or upgrades the tables of a Postgres store, for servers whose role may not do that.
///
/// # Errors
///
/// When that fails, and for other stores, which have no tables.
pub async fn migrate(url: &str, options: &OpenOptions) -> Result<(), CheckError> {
    match url.split_once(':').map(|(scheme, _)| scheme) {
        #[cfg(feature = "postgres")]
        Some("postgres" | "postgresql") => {
            let postgres = super::postgres_options(options);
            let migrated = crate::PostgresStore::migrate(url, &postgres).await;
            Ok(migrated.map_err(OpenError::from)?)
        }
        _ => Err(CheckError::NothingToMigrate(super::url_without_secrets(
            url,
        ))),
    }
}
