//! The tables of the store, and how a node creates and upgrades them.

use std::time::Duration;

use forrst_lock::Secret;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use super::PostgresError;

/// The version of the tables. Each number has a step in [`STEPS`].
pub(super) const VERSION: i32 = 1;

/// How long to wait for another node that migrates.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(30);

/// What leads from one version to the next. `{schema}` stands for the name of the schema.
const STEPS: [&str; 1] = [include_str!("schema.sql")];

/// The name of a schema, which may stand in SQL without quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Schema(String);

impl Schema {
    /// The longest name: channels are named after it.
    const MAX: usize = 30;

    pub(super) fn parse(name: &str) -> Result<Self, PostgresError> {
        let is_letter = |c: char| c.is_ascii_lowercase() || c == '_';
        let is_valid = name.len() <= Self::MAX
            && name.starts_with(is_letter)
            && !name.starts_with("pg_")
            && name.chars().all(|c| is_letter(c) || c.is_ascii_digit());
        match is_valid {
            true => Ok(Self(name.to_owned())),
            false => Err(PostgresError::BadSchema(name.to_owned())),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.0
    }

    /// Puts the name of the schema into a statement.
    pub(super) fn sql(&self, statement: &str) -> String {
        statement.replace("{schema}", &self.0)
    }

    /// The channel of a node.
    pub(super) fn channel(&self, node: &str) -> String {
        format!("{}_{node}", self.0)
    }
}

/// Checks the version of the tables, and migrates them if needed. Returns the secret that all nodes share.
pub(super) async fn prepare(client: &Client, schema: &Schema) -> Result<Secret, PostgresError> {
    if read_version(client, schema).await? != Some(VERSION) {
        migrate(client, schema).await?;
    }
    let statement = schema.sql("SELECT secret FROM {schema}.store");
    let row = client.query_typed_one(&statement, &[]).await;
    let row = row.map_err(PostgresError::from)?;
    let secret: Vec<u8> = row.get(0);
    let secret = <[u8; 32]>::try_from(secret).map_err(|_| PostgresError::OtherVersion {
        schema: schema.name().to_owned(),
        found: "without a secret".to_owned(),
    })?;
    Ok(Secret::from_bytes(secret))
}

/// The version of the tables; `None` if there are none.
pub(super) async fn read_version(
    client: &Client,
    schema: &Schema,
) -> Result<Option<i32>, PostgresError> {
    let statement = schema.sql("SELECT version FROM {schema}.store");
    let row = match client.query_typed_opt(&statement, &[]).await {
        Ok(row) => row,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let version: Option<i32> = row.map(|row| row.get(0));
    match version {
        Some(found) if found > VERSION => Err(PostgresError::OtherVersion {
            schema: schema.name().to_owned(),
            found: found.to_string(),
        }),
        known => Ok(known),
    }
}

fn is_missing(error: &Error) -> bool {
    let missing = [
        SqlState::UNDEFINED_TABLE,
        SqlState::INVALID_SCHEMA_NAME,
        SqlState::UNDEFINED_COLUMN,
    ];
    error.code().is_some_and(|code| missing.contains(code))
}

/// Creates or upgrades the tables. Nodes that start at the same time do this one after the other.
pub(super) async fn migrate(client: &Client, schema: &Schema) -> Result<(), PostgresError> {
    let migrated = migrate_in_transaction(client, schema).await;
    if migrated.is_err() {
        let _ = client.batch_execute("ROLLBACK").await;
    }
    match migrated {
        Err(PostgresError::Failed(error))
            if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) =>
        {
            Err(PostgresError::NotMigrated {
                schema: schema.name().to_owned(),
                error,
            })
        }
        other => other,
    }
}

async fn migrate_in_transaction(client: &Client, schema: &Schema) -> Result<(), PostgresError> {
    let millis = MIGRATION_TIMEOUT.as_millis();
    let begin = format!(
        "BEGIN; SET LOCAL lock_timeout = {millis}; SET LOCAL statement_timeout = {millis};
         SELECT pg_advisory_xact_lock(hashtext('forrst.{}'))",
        schema.name()
    );
    client.batch_execute(&begin).await?;
    // Another node may have migrated in the meantime. An error would end the transaction, so the table is looked up first.
    let exists = "SELECT to_regclass($1) IS NOT NULL";
    let store = format!("{}.store", schema.name());
    let row = client
        .query_typed_one(exists, &[(&store, Type::TEXT)])
        .await?;
    let found = match row.get(0) {
        true => read_version(client, schema).await?.unwrap_or(0),
        false => 0,
    };
    let done = usize::try_from(found).unwrap_or(0);
    for step in STEPS.iter().skip(done) {
        client.batch_execute(&schema.sql(step)).await?;
    }
    let set = schema.sql(
        "INSERT INTO {schema}.store (version, secret) VALUES ($1, $2)
         ON CONFLICT (one) DO UPDATE SET version = excluded.version",
    );
    let secret = Secret::random().as_bytes().to_vec();
    let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
        [(&VERSION, Type::INT4), (&secret, Type::BYTEA)];
    client.execute_typed(&set, &parameters).await?;
    client.batch_execute("COMMIT").await?;
    Ok(())
}
