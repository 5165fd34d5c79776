//! Fixed, single-threaded work whose instructions callgrind counts: the counts are nearly the same in each run.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use forrst_lock::model::{Acquired, LeaseRef};
use forrst_lock::{LockStore, LockStoreExt as _};
use forrst_protocol::Request;
use forrst_stores::MemoryStore;
use tokio::runtime::Builder;

use crate::serve::{acquire_command, echo_server, lock_name};
use crate::wire::{SERIAL, Template, locked_echo};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// `Request::parse` of a locked call
    Parse,
    /// Acquire and release of a new key on the memory store
    AcquireRelease,
    /// A locked call of `demo.echo` through the whole server, without a socket
    Request,
}

#[derive(Debug, Args)]
pub(crate) struct WorkloadArguments {
    work: Work,
    iterations: u64,
}

pub(crate) fn run(arguments: &WorkloadArguments) -> Result<(), String> {
    // One thread: the scheduling of several is not repeatable.
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let iterations = 0..arguments.iterations;
    match arguments.work {
        Work::Parse => parse(iterations),
        Work::AcquireRelease => runtime.block_on(acquire_release(iterations)),
        Work::Request => runtime.block_on(request(iterations)),
    }
}

fn body() -> Template {
    Template::new(locked_echo(SERIAL, None).to_string().into_bytes())
}

fn parse(iterations: std::ops::Range<u64>) -> Result<(), String> {
    let (template, mut body) = (body(), Vec::new());
    for serial in iterations {
        body.clear();
        template.write(0, serial, &mut body);
        let request = Request::parse(&body).map_err(|rejection| format!("{rejection:?}"))?;
        std::hint::black_box(request);
    }
    Ok(())
}

async fn acquire_release(iterations: std::ops::Range<u64>) -> Result<(), String> {
    let store: Arc<dyn LockStore> = Arc::new(MemoryStore::new());
    for serial in iterations {
        cycle(&store, &format!("key:{serial}")).await?;
    }
    Ok(())
}

/// Acquires a lock without contention, and releases it.
pub(crate) async fn cycle(store: &Arc<dyn LockStore>, key: &str) -> Result<(), String> {
    let name = lock_name(key);
    let ttl = std::time::Duration::from_secs(30);
    let acquired = store.acquire(acquire_command(name.clone(), ttl)).await;
    let Acquired::Granted(lease) = acquired.map_err(|error| error.to_string())?.outcome else {
        return Err(format!("{name} was not granted"));
    };
    let held = LeaseRef {
        name: name.clone(),
        owner: lease.owner,
        fence: Some(lease.fence),
    };
    let released = store.release(held).await;
    let outcome = released.map_err(|error| error.to_string())?.outcome;
    outcome
        .map(|_| ())
        .map_err(|why| format!("{name} was not released: {why:?}"))
}

async fn request(iterations: std::ops::Range<u64>) -> Result<(), String> {
    let server = echo_server(Arc::new(MemoryStore::new()))?;
    let (template, mut body) = (body(), Vec::new());
    for serial in iterations {
        body.clear();
        template.write(0, serial, &mut body);
        let response = server.handle(&body).await;
        let mut answer = String::with_capacity(1024);
        response.write_json(&mut answer);
        if response.http_status() != 200 {
            return Err(answer);
        }
        std::hint::black_box(answer);
    }
    Ok(())
}
