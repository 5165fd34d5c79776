//! The core of a server: it answers one request of one caller, and knows nothing of sockets.
//!
//! Listeners ([`crate::transport`]) read bytes and a credential off a connection and feed them in through
//! [`Core::answer`].

mod admission;
mod record;
mod refusals;

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use forrst_lock::{KeyStyle, LockService, Secret};
use forrst_protocol::{
    ErrorCode, ErrorObject, ExtensionData, MAX_PROBLEMS, Pointer, Problems, RawObject, Rejection,
    Request, RequestId, Response, Urn, Version,
};
use futures_util::future::CatchUnwind;
use futures_util::{FutureExt, poll};
use serde_json::{Value, json};
use smallvec::SmallVec;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

pub(crate) use self::admission::Counted;
pub(crate) use self::record::NotedLocks;
use self::record::Record;
pub(crate) use self::refusals::{Refusals, one_frame};
use crate::Context;
use crate::access::{Access, Caller, Credential};
use crate::audit::Audit;
use crate::context::{CallInfo, Cancellation, Stop, Values};
use crate::error::internal_error;
use crate::extension::{
    AtomicLock, DeadlineExtension, End, Extension, ExtensionCall, Next, Retry, Stage, Step, Trace,
    Tracing, extension_pointer, guidance,
};
use crate::limits::{HeldLocks, Limits, RateLimit, Refusal, Room};
use crate::metrics::{Activity, Metrics};
use crate::registry::{Registered, Registry};
use crate::server::BuildError;
use crate::span;
use crate::system::StoreHealth;

/// How many extensions that are not supported an answer names.
const MOST_NAMED: usize = 16;

/// What every request can reach.
pub(crate) struct Core {
    pub(crate) service: String,
    pub(crate) node: Arc<str>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) access: Access,
    pub(crate) rate: RateLimit<forrst_lock::Caller>,
    /// By address, for clients that have shown no valid key.
    pub(crate) unauthenticated: RateLimit<IpAddr>,
    pub(crate) held: Arc<HeldLocks>,
    pub(crate) locks: LockService,
    pub(crate) store_health: StoreHealth,
    pub(crate) registry: Registry,
    pub(crate) extensions: Extensions,
    pub(crate) audit: Audit,
    /// What was refused a short while ago.
    pub(crate) refusals: Refusals,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) activity: Activity,
    /// How lock names look in the log.
    pub(crate) keys: KeyStyle,
    /// What the hashes of keys and owners are made with.
    pub(crate) secret: Secret,
    /// Calls that run in tasks of their own, and connections.
    pub(crate) tasks: TaskTracker,
    /// No new connections; those that are open end after the request they are at.
    pub(crate) draining: CancellationToken,
    /// Functions that still run are ended.
    pub(crate) stop: Arc<Stop>,
    /// What the application gives to its functions.
    pub(crate) state: Values,
}

/// The server of one call. All threads count the references to the server itself in one place, and pass the cache line of that
/// number to each other; so a call has one of them, and counts those within it here.
#[derive(Debug, Clone)]
pub(crate) struct Served(Arc<Reference>);

#[derive(Debug)]
struct Reference {
    core: Arc<Core>,
}

impl Served {
    fn by(core: Arc<Core>) -> Self {
        Self(Arc::new(Reference { core }))
    }
}

impl Deref for Served {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.0.core
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("service", &self.service)
            .field("node", &self.node)
            .field("registry", &self.registry)
            .finish_non_exhaustive()
    }
}

/// The extensions in the order in which they act, and where each name of theirs leads.
#[derive(Default)]
pub(crate) struct Extensions {
    pub(crate) all: Vec<Box<dyn Extension>>,
    /// So few that comparing them is faster than hashing.
    by_urn: Vec<(String, usize)>,
    lock_place: usize,
}

impl Extensions {
    /// Where `deadline` is.
    pub(crate) const DEADLINE: usize = 0;

    /// Before it are `deadline`, `tracing` and `retry`, which only watch.
    pub(crate) const FIRST_OF_USERS: usize = 3;

    pub(crate) fn new(
        limits: &Arc<Limits>,
        of_users: Vec<Box<dyn Extension>>,
    ) -> Result<Self, BuildError> {
        let mut inside = of_users;
        let is_before = |extension: &mut Box<dyn Extension>| extension.stage() == Stage::BeforeLock;
        let before: Vec<_> = inside.extract_if(.., is_before).collect();
        let mut extensions = Self::default();
        extensions.add(Box::new(DeadlineExtension))?;
        extensions.add(Box::new(Tracing))?;
        extensions.add(Box::new(Retry))?;
        for extension in before {
            extensions.add(extension)?;
        }
        extensions.lock_place = extensions.all.len();
        let limits = limits.clone();
        extensions.add(Box::new(AtomicLock { limits }))?;
        for extension in inside {
            extensions.add(extension)?;
        }
        Ok(extensions)
    }

    fn add(&mut self, extension: Box<dyn Extension>) -> Result<(), BuildError> {
        for urn in [Some(extension.urn()), extension.alias()]
            .into_iter()
            .flatten()
        {
            if Urn::parse(urn).is_err() {
                return Err(BuildError::ExtensionUrn(urn.to_owned()));
            }
            if self.find(urn).is_some() {
                return Err(BuildError::ExtensionTwice(urn.to_owned()));
            }
            self.by_urn.push((urn.to_owned(), self.all.len()));
        }
        self.all.push(extension);
        Ok(())
    }

    /// Every name of every extension, and its index.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, usize)> {
        self.by_urn
            .iter()
            .map(|(urn, index)| (urn.as_str(), *index))
    }

    /// `{urn, version}` of every name of those extensions.
    pub(crate) fn listed(&self, is_listed: impl Fn(usize) -> bool) -> Vec<Value> {
        let names = self.names().filter(|(_, index)| is_listed(*index));
        let entry =
            |(urn, index): (&str, usize)| json!({"urn": urn, "version": self.all[index].version()});
        names.map(entry).collect()
    }

    pub(crate) fn find(&self, urn: &str) -> Option<usize> {
        let (_, index) = self.by_urn.iter().find(|(own, _)| own == urn)?;
        Some(*index)
    }

    /// Where `atomicLock` is.
    pub(crate) fn lock_place(&self) -> usize {
        self.lock_place
    }
}

/// What comes with a request besides its body.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) received: Instant,
    pub(crate) traceparent: Option<String>,
    pub(crate) credential: Credential,
    /// The address that it came from.
    pub(crate) from: Option<Arc<str>>,
    /// Why the transport has no room for the request, if it has none.
    pub(crate) refusal: Option<ErrorObject>,
    /// For the request and its answer.
    pub(crate) room: Room,
    /// How many errors the answer may list: those of a batch share one answer.
    pub(crate) max_errors: usize,
    /// Whether it was counted against its sender's rate on the way here.
    pub(crate) counted: Counted,
}

impl Origin {
    /// From somebody on this machine who is the server's own user.
    pub(crate) fn local(from: Option<Arc<str>>) -> Self {
        Self {
            received: Instant::now(),
            traceparent: None,
            credential: Credential::Local,
            from,
            refusal: None,
            room: Room::default(),
            max_errors: MAX_PROBLEMS,
            counted: Counted::NotYet,
        }
    }
}

impl Core {
    /// Answers one request, given as the bytes of its body. A body that is owned is dropped before the call runs: what the call
    /// needs of it is kept by then, and a wait may be long.
    ///
    /// Dropping the future is a disconnect: a call that waits for a lock leaves the queue, and a function that runs
    /// already runs to completion.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        body: impl AsRef<[u8]> + Send,
        origin: Origin,
    ) -> Response {
        if !span::is_traced() {
            return self.answer_in_span(body, origin).await;
        }
        let span = span::request(origin.traceparent.as_deref());
        Box::pin(self.answer_in_span(body, origin).instrument(span)).await
    }

    async fn answer_in_span(
        self: &Arc<Self>,
        body: impl AsRef<[u8]> + Send,
        mut origin: Origin,
    ) -> Response {
        let mut record = Record::new(self, &origin);
        let caller = self.recognise(&origin.credential);
        if let Ok(caller) = &caller {
            record.by(caller);
        }
        let counted = std::mem::take(&mut origin.counted);
        let admitted = caller.and_then(|caller| self.admit(caller, counted));
        let admitted = match origin.refusal.take() {
            Some(refusal) => admitted.and(Err(refusal)),
            None => admitted,
        };
        let prepared = self.prepare(body.as_ref(), admitted, origin, &mut record);
        drop(body);
        let response = match prepared {
            Ok(ready) => {
                let id = ready.id.clone();
                // An extension may panic as well as a function.
                let answer = AssertUnwindSafe(ready.run()).catch_unwind();
                let failed = |_| Response::failure(Some(id), internal_error());
                answer.await.unwrap_or_else(failed)
            }
            Err(response) => *response,
        };
        record.answered(&response);
        response.with_node(self.node.clone())
    }

    /// Reads a request; the response where there is nothing to run.
    fn prepare<'a>(
        self: &'a Arc<Self>,
        body: &[u8],
        admitted: Result<Caller, ErrorObject>,
        origin: Origin,
        record: &mut Record<'a>,
    ) -> Result<Ready, Box<Response>> {
        let request = Request::parse(body);
        if let Ok(request) = &request {
            record.of(request);
        }
        match (request, admitted) {
            (Ok(request), Ok(caller)) => {
                let id = request.id.clone();
                let locks = record.locks.clone();
                // The reading of options and arguments may panic.
                let check = AssertUnwindSafe(|| self.check(request, caller, origin, locks));
                let failed = |_| Err(Response::failure(Some(id), internal_error()).into());
                std::panic::catch_unwind(check).unwrap_or_else(failed)
            }
            (Ok(request), Err(refusal)) => Err(refused(request, refusal)),
            // An unauthenticated client does not learn what is wrong with the request, only whose it was.
            (Err(rejection), Err(refusal)) => {
                Err(Response::failure(rejection.id().cloned(), refusal).into())
            }
            (Err(rejection), Ok(_)) => {
                if let Err(refusal) = self.expect_answer(&origin.room, 0) {
                    return Err(Response::failure(rejection.id().cloned(), refusal).into());
                }
                if rejection.is_nested_too_deep() {
                    self.metrics.refused(Refusal::Nesting);
                }
                let asked = rejection.extensions().to_vec();
                let response = rejected(rejection, origin.max_errors);
                Err(with_guidance(response, &asked).into())
            }
        }
    }

    /// Everything that can be wrong is found before anything is done.
    fn check(
        self: &Arc<Self>,
        request: Request<'_>,
        caller: Caller,
        origin: Origin,
        locks: NotedLocks,
    ) -> Result<Ready, Box<Response>> {
        let mut problems = Problems::at_most(origin.max_errors);
        let function = self
            .registry
            .find(&request.call)
            .map_err(|error| problems.note(|| error))
            .ok();
        let any_version = || self.registry.versions(&request.call.function).next();
        let allowed = match function.or_else(any_version) {
            Some(own) if own.is_system => caller.check_needs(own.needs, own.name.as_str()),
            _ => caller.check_function(&request.call.function),
        };
        if let Err(refusal) = allowed {
            self.metrics.refused(Refusal::Forbidden);
            return Err(refused(request, refusal));
        }
        let room = match function {
            Some(function) => origin.room.expect_result(&function.result_size).map(Some),
            None => origin.room.expect_answer(0).map(|()| None),
        };
        let room = match room {
            Ok(room) => room,
            Err(refusal) => {
                self.metrics.refused(Refusal::Bytes);
                return Err(refused(request, refusal));
            }
        };
        let asked = Asked {
            request: &request,
            function,
            caller: &caller,
            traceparent: origin.traceparent.as_deref(),
            locks: &locks,
        };
        let plan = self.plan(&asked, &mut problems);
        let prepared = function.and_then(|function| {
            (function.prepare)(&request.call.arguments)
                .map_err(|errors| problems.extend(errors))
                .ok()
        });
        let end = match (problems.into_errors(), prepared, room) {
            (None, Some(call), Some(room)) => End::Call(call, room),
            (problems, ..) => End::Fail(problems.unwrap_or_else(|| internal_error().into())),
        };
        let version = function.map(|function| function.version.clone());
        let context = Context {
            call: Arc::new(CallInfo {
                id: request.id.clone(),
                function: request.call.function,
                version: version.unwrap_or(Version::new(0, 0, 0)),
                context: request.context.map(RawObject::into_owned),
                caller,
                credential: origin.credential,
                from: origin.from,
                received: origin.received,
                locks,
                state: self.state.clone(),
                cancellation: Cancellation::new(self.stop.clone()),
            }),
            deadline: None,
            trace: None,
            lease: None,
            values: Values::default(),
        };
        // A function of the system does not outlive its caller.
        let is_detached = function.is_some_and(|function| function.is_system);
        Ok(Ready {
            id: request.id,
            asked: request.extensions.into_iter().map(|e| e.urn).collect(),
            next: Next::new(Served::by(self.clone()), plan, end, is_detached),
            context,
        })
    }

    /// Takes the bytes of an answer that is no function's.
    pub(crate) fn expect_answer(&self, room: &Room, bytes: usize) -> Result<(), ErrorObject> {
        let expected = room.expect_answer(bytes);
        expected.inspect_err(|_| self.metrics.refused(Refusal::Bytes))
    }
}

/// A call that was checked, and needs nothing of the body it came in.
struct Ready {
    id: RequestId,
    /// The extensions in the order of the request.
    asked: SmallVec<[Urn; 1]>,
    next: Next,
    context: Context,
}

impl Ready {
    async fn run(self) -> Response {
        let (result, mut data) = self.next.run(self.context).await.into_parts();
        let index = |data: &ExtensionData| self.asked.iter().position(|urn| urn == data.urn());
        data.sort_by_key(index);
        let response = match result {
            Ok(result) => Response::success_raw(self.id, result),
            Err(errors) => Response::failure(Some(self.id), errors),
        };
        response.with_extensions(data)
    }
}

/// A request whose extensions are checked.
struct Asked<'a> {
    request: &'a Request<'a>,
    function: Option<&'a Registered>,
    caller: &'a Caller,
    traceparent: Option<&'a str>,
    locks: &'a NotedLocks,
}

impl<'a> Asked<'a> {
    fn extension(
        &'a self,
        urn: &'a Urn,
        options: Option<&'a RawObject<'a>>,
        index: Option<usize>,
    ) -> ExtensionCall<'a> {
        ExtensionCall {
            urn,
            options,
            function: &self.request.call.function,
            index,
            caller: self.caller,
            traceparent: self.traceparent,
            locks: self.locks,
        }
    }
}

impl Core {
    /// Checks the extensions that a request names.
    fn plan(&self, asked: &Asked<'_>, problems: &mut Problems) -> SmallVec<[Step; 1]> {
        let Asked { request, .. } = asked;
        let mut plan = SmallVec::new();
        let mut unsupported: Vec<(usize, &str)> = Vec::new();
        let mut seen: SmallVec<[usize; 4]> = SmallVec::new();
        for (index, extension) in request.extensions.iter().enumerate() {
            let urn = extension.urn.as_str();
            let Some(place) = self.extensions.find(urn) else {
                if extension.required && !is_hint(urn) && unsupported.len() < MOST_NAMED {
                    unsupported.push((index, urn));
                }
                continue;
            };
            if seen.contains(&place) {
                problems.note(|| {
                    let message = format!("`{urn}` is asked for twice");
                    let error = ErrorObject::new(ErrorCode::InvalidRequest, message);
                    error.at(extension_pointer(index))
                });
                continue;
            }
            seen.push(place);
            if asked
                .function
                .is_some_and(|function| !function.takes(place))
            {
                problems.note(|| not_applicable(urn, request, extension_pointer(index)));
                continue;
            }
            let call = asked.extension(&extension.urn, extension.options.as_ref(), Some(index));
            match self.extensions.all[place].prepare(&call) {
                Ok(around) => plan.push(Step { place, around }),
                Err(errors) => {
                    if errors.iter().any(|e| e.code == ErrorCode::Forbidden) {
                        self.metrics.refused(Refusal::Forbidden);
                    }
                    problems.extend(errors);
                }
            }
        }
        if let Some((first, _)) = unsupported.first() {
            problems.note(|| self.not_supported(*first, &unsupported));
        }
        plan.extend(self.trace_of_header(asked, &seen));
        plan
    }

    /// A `traceparent` header does as well as naming the extension.
    fn trace_of_header(&self, asked: &Asked<'_>, seen: &[usize]) -> Option<Step> {
        Trace::from_traceparent(asked.traceparent?)?;
        let place = self.extensions.find(Tracing::URN)?;
        if seen.contains(&place) {
            return None;
        }
        let urn = Urn::parse(Tracing::URN).ok()?;
        // Without an index: it was not asked for, and adds nothing to the answer.
        let call = asked.extension(&urn, None, None);
        let around = self.extensions.all[place].prepare(&call).ok()?;
        Some(Step { place, around })
    }

    fn not_supported(&self, first: usize, unsupported: &[(usize, &str)]) -> ErrorObject {
        let urns: Vec<&str> = unsupported.iter().map(|(_, urn)| *urn).collect();
        let message = format!("Extension not supported: {}", urns.join(", "));
        let supported: Vec<&str> = self.extensions.names().map(|(urn, _)| urn).collect();
        ErrorObject::new(ErrorCode::ExtensionNotSupported, message)
            .at(extension_pointer(first))
            .with_detail("unsupported", urns)
            .with_detail("supported", supported)
    }

    /// Does work that the disconnect of its caller must not end: `is_apart` from the first moment on in a task of its own, else
    /// from the moment on at which it has to wait. `None` if it panics.
    pub(crate) async fn run_to_end<W>(
        &self,
        mut work: ToEnd<W>,
        is_apart: bool,
    ) -> Option<W::Output>
    where
        W: Future<Output: Send> + Send + 'static,
    {
        if !is_apart && let Poll::Ready(done) = poll!(&mut work) {
            return done;
        }
        self.tasks.spawn(work.in_current_span()).await.ok()?
    }
}

/// Work for [`Core::run_to_end`]. It is boxed here, so that what passes it on stays small. `None` if it panics.
pub(crate) struct ToEnd<W>(Pin<Box<CatchUnwind<AssertUnwindSafe<W>>>>);

impl<W: Future> ToEnd<W> {
    pub(crate) fn new(work: W) -> Self {
        Self(Box::pin(AssertUnwindSafe(work).catch_unwind()))
    }
}

impl<W: Future> Future for ToEnd<W> {
    type Output = Option<W::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Result::ok)
    }
}

/// The response to a request that is refused before its extensions are looked at.
fn refused(request: Request<'_>, refusal: ErrorObject) -> Box<Response> {
    let response = Response::failure(Some(request.id), refusal);
    let asked: Vec<Urn> = request.extensions.into_iter().map(|e| e.urn).collect();
    with_guidance(response, &asked).into()
}

/// Adds the data of `retry` to the response of a request that has asked for it and came no further.
fn with_guidance(response: Response, asked: &[Urn]) -> Response {
    let is_retry = |urn: &&Urn| [Retry::URN, Retry::ALIAS].contains(&urn.as_str());
    let Some(urn) = asked.iter().find(is_retry) else {
        return response;
    };
    let data = response.result().err().map(guidance);
    match data.map(|data| RawObject::from_serialize(&data)) {
        Some(Ok(data)) => response.with_extension(urn.clone(), data),
        _ => response,
    }
}

/// What was wrong with the envelope, shortened where the answer has room for less.
fn rejected(rejection: Rejection, max_errors: usize) -> Response {
    if rejection.errors().as_slice().len() <= max_errors {
        return rejection.into();
    }
    let mut problems = Problems::at_most(max_errors);
    problems.extend(rejection.errors().iter().cloned());
    let errors = problems.into_errors();
    let errors = errors.unwrap_or_else(|| internal_error().into());
    Response::failure(rejection.id().cloned(), errors)
}

/// Whether an extension only hints at how a call could be served better, so that it can be ignored even where it is required.
fn is_hint(urn: &str) -> bool {
    let name = urn.strip_prefix("urn:forrst:ext:");
    let name = name.or_else(|| urn.strip_prefix("urn:cline:forrst:ext:"));
    matches!(
        name,
        Some("locale" | "caching" | "quota" | "priority" | "deprecation")
    )
}

fn not_applicable(urn: &str, request: &Request<'_>, pointer: Pointer) -> ErrorObject {
    let function = request.call.function.as_str();
    let message = format!("`{urn}` cannot be used with `{function}`");
    ErrorObject::new(ErrorCode::ExtensionNotApplicable, message)
        .at(pointer)
        .with_detail("extension", urn)
        .with_detail("function", function)
}
