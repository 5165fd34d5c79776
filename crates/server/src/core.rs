//! The core of a server: it answers one request of one caller, and needs no socket.
//!
//! Listeners ([`crate::transport`]) read a body and a credential from a connection, and pass them to [`Core::answer`]. It checks
//! the whole request before it runs the pipeline of extensions and the function.

mod admission;
mod refusals;
mod request_log;

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
pub(crate) use self::refusals::{RefusalLog, one_frame};
pub(crate) use self::request_log::NotedLocks;
use self::request_log::RequestLog;
use crate::Context;
use crate::access::{Access, Caller, Credential};
use crate::audit::Audit;
use crate::context::{CallInfo, Cancellation, Stop, Values};
use crate::error::internal_error;
use crate::extension::{
    AtomicLock, CancellationExtension, DeadlineExtension, Extension, ExtensionCall, Innermost,
    Next, Retry, Stage, Step, Trace, Tracing, extension_pointer, guidance,
};
use crate::limits::{HeldLocks, Limits, RateLimit, Refusal, Room};
use crate::metrics::{Activity, Metrics};
use crate::registry::{Registered, Registry};
use crate::server::BuildError;
use crate::span;
use crate::system::StoreHealth;

/// How many unsupported extensions an answer lists.
const MAX_UNSUPPORTED: usize = 16;

/// The state of a server, shared by all requests.
pub(crate) struct Core {
    pub(crate) service: String,
    pub(crate) node: Arc<str>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) access: Access,
    pub(crate) rate: RateLimit<forrst_lock::Caller>,
    /// By address, for clients without a valid key.
    pub(crate) unauthenticated: RateLimit<IpAddr>,
    pub(crate) held: Arc<HeldLocks>,
    pub(crate) locks: LockService,
    pub(crate) store_health: StoreHealth,
    pub(crate) registry: Registry,
    pub(crate) extensions: Extensions,
    pub(crate) audit: Audit,
    /// Repeated refusals, which are counted and not logged one by one.
    pub(crate) refusals: RefusalLog,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) activity: Activity,
    /// How lock names are written to the log.
    pub(crate) keys: KeyStyle,
    /// The key of the hashes of lock keys and owners.
    pub(crate) secret: Secret,
    /// The tasks of connections, and of calls that have one of their own.
    pub(crate) tasks: TaskTracker,
    /// No new connections are accepted; open ones are closed after their current request.
    pub(crate) draining: CancellationToken,
    /// Drops the functions that still run.
    pub(crate) stop: Arc<Stop>,
    /// The state of the application, for its functions.
    pub(crate) state: Values,
}

/// A reference to the server for one call. All threads share the reference count of the [`Core`], and contend for its cache line.
/// So a call increments it once, and the references within the call are counted here.
#[derive(Debug, Clone)]
pub(crate) struct CoreHandle(Arc<CallReference>);

#[derive(Debug)]
struct CallReference {
    core: Arc<Core>,
}

impl CoreHandle {
    fn new(core: Arc<Core>) -> Self {
        Self(Arc::new(CallReference { core }))
    }
}

impl Deref for CoreHandle {
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

/// All extensions in the order of the pipeline, and an index of their names.
#[derive(Default)]
pub(crate) struct Extensions {
    pub(crate) all: Vec<Box<dyn Extension>>,
    /// Linear, because comparing so few is faster than hashing.
    by_urn: Vec<(String, usize)>,
    lock_index: usize,
}

impl Extensions {
    /// The index of `deadline`.
    pub(crate) const DEADLINE: usize = 0;

    /// The index of `cancellation`. The extensions before it, `deadline`, `tracing` and `retry`, only observe the call.
    pub(crate) const CANCELLATION: usize = 3;

    pub(crate) fn new(
        limits: &Arc<Limits>,
        registered: Vec<Box<dyn Extension>>,
    ) -> Result<Self, BuildError> {
        let mut inside = registered;
        let is_before = |extension: &mut Box<dyn Extension>| extension.stage() == Stage::BeforeLock;
        let before: Vec<_> = inside.extract_if(.., is_before).collect();
        let mut extensions = Self::default();
        extensions.add(Box::new(DeadlineExtension))?;
        extensions.add(Box::new(Tracing))?;
        extensions.add(Box::new(Retry))?;
        extensions.add(Box::new(CancellationExtension))?;
        for extension in before {
            extensions.add(extension)?;
        }
        extensions.lock_index = extensions.all.len();
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

    /// The index of `atomicLock`.
    pub(crate) fn lock_index(&self) -> usize {
        self.lock_index
    }
}

/// The metadata of a request, from its transport.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) received: Instant,
    pub(crate) traceparent: Option<String>,
    pub(crate) credential: Credential,
    /// The address of the client.
    pub(crate) from: Option<Arc<str>>,
    /// Why the transport refuses the request, if it does.
    pub(crate) refusal: Option<ErrorObject>,
    /// The budget of bytes for the request and its answer.
    pub(crate) room: Room,
    /// How many errors the answer may list: those of a batch share one answer.
    pub(crate) max_errors: usize,
    /// Whether the transport has already counted it against the caller's rate.
    pub(crate) counted: Counted,
}

impl Origin {
    /// A request of the server's own user on this machine.
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
    /// Answers one request, given as the bytes of its body. An owned body is dropped before the call runs, because a wait may be
    /// long.
    ///
    /// Dropping the future is a disconnect: a call that waits for a lock leaves the queue, and a function that has started runs
    /// to completion.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        body: impl AsRef<[u8]> + Send,
        origin: Origin,
    ) -> Response {
        if !span::is_traced() {
            return self.answer_in_span(body, origin).await;
        }
        let caller = || Tracing::caller_span(body.as_ref(), origin.traceparent.as_deref());
        let span = span::request(caller);
        Box::pin(self.answer_in_span(body, origin).instrument(span)).await
    }

    async fn answer_in_span(
        self: &Arc<Self>,
        body: impl AsRef<[u8]> + Send,
        mut origin: Origin,
    ) -> Response {
        let mut log = RequestLog::new(self, &origin);
        let caller = self.authenticate(&origin.credential);
        if let Ok(caller) = &caller {
            log.set_caller(caller);
        }
        let counted = std::mem::take(&mut origin.counted);
        let admitted = caller.and_then(|caller| self.admit(caller, counted));
        let admitted = match origin.refusal.take() {
            Some(refusal) => admitted.and(Err(refusal)),
            None => admitted,
        };
        let prepared = self.prepare(body.as_ref(), admitted, origin, &mut log);
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
        log.finish(&response);
        response.with_node(self.node.clone())
    }

    /// Parses and checks a request. An error is the response to a request that is not run.
    fn prepare<'a>(
        self: &'a Arc<Self>,
        body: &[u8],
        admitted: Result<Caller, ErrorObject>,
        origin: Origin,
        log: &mut RequestLog<'a>,
    ) -> Result<Ready, Box<Response>> {
        let request = Request::parse(body);
        if let Ok(request) = &request {
            log.set_request(request);
        }
        match (request, admitted) {
            (Ok(request), Ok(caller)) => {
                let id = request.id.clone();
                let locks = log.locks.clone();
                // Parsing options and arguments runs code of the application, which may panic.
                let check = AssertUnwindSafe(|| self.check(request, caller, origin, locks));
                let failed = |_| Err(Response::failure(Some(id), internal_error()).into());
                std::panic::catch_unwind(check).unwrap_or_else(failed)
            }
            (Ok(request), Err(refusal)) => Err(refused(request, refusal)),
            // An unauthenticated client learns nothing about its request but the id.
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
                let requested = rejection.extensions().to_vec();
                let response = rejected(rejection, origin.max_errors);
                Err(with_guidance(response, &requested).into())
            }
        }
    }

    /// Checks the whole request before anything is done.
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
        let input = CheckInput {
            request: &request,
            function,
            caller: &caller,
            traceparent: origin.traceparent.as_deref(),
            locks: &locks,
        };
        let plan = self.plan(&input, &mut problems);
        let prepared = function.and_then(|function| {
            (function.prepare)(&request.call.arguments)
                .map_err(|errors| problems.extend(errors))
                .ok()
        });
        let innermost = match (problems.into_errors(), prepared, room) {
            (None, Some(call), Some(room)) => Innermost::Call(call, room),
            (problems, ..) => Innermost::Fail(problems.unwrap_or_else(|| internal_error().into())),
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
        let is_system = function.is_some_and(|function| function.is_system);
        Ok(Ready {
            id: request.id,
            requested: request.extensions.into_iter().map(|e| e.urn).collect(),
            next: Next::new(CoreHandle::new(self.clone()), plan, innermost, is_system),
            context,
        })
    }

    /// Reserves the bytes of an answer without a function's result.
    pub(crate) fn expect_answer(&self, room: &Room, bytes: usize) -> Result<(), ErrorObject> {
        let expected = room.expect_answer(bytes);
        expected.inspect_err(|_| self.metrics.refused(Refusal::Bytes))
    }
}

/// A call that was checked and is ready to run. It borrows nothing from the body.
struct Ready {
    id: RequestId,
    /// The extensions in the order of the request.
    requested: SmallVec<[Urn; 1]>,
    next: Next,
    context: Context,
}

impl Ready {
    async fn run(self) -> Response {
        let (result, mut data) = self.next.run(self.context).await.into_parts();
        let index = |data: &ExtensionData| self.requested.iter().position(|urn| urn == data.urn());
        data.sort_by_key(index);
        let response = match result {
            Ok(result) => Response::success_raw(self.id, result),
            Err(errors) => Response::failure(Some(self.id), errors),
        };
        response.with_extensions(data)
    }
}

/// What the extensions of a request are checked with.
struct CheckInput<'a> {
    request: &'a Request<'a>,
    function: Option<&'a Registered>,
    caller: &'a Caller,
    traceparent: Option<&'a str>,
    locks: &'a NotedLocks,
}

impl<'a> CheckInput<'a> {
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
    /// Prepares the extensions that a request names.
    fn plan(&self, input: &CheckInput<'_>, problems: &mut Problems) -> SmallVec<[Step; 1]> {
        let CheckInput { request, .. } = input;
        let mut plan = SmallVec::new();
        let mut unsupported: Vec<(usize, &str)> = Vec::new();
        let mut seen: SmallVec<[usize; 4]> = SmallVec::new();
        for (entry, extension) in request.extensions.iter().enumerate() {
            let urn = extension.urn.as_str();
            let Some(index) = self.extensions.find(urn) else {
                if extension.required && !is_hint(urn) && unsupported.len() < MAX_UNSUPPORTED {
                    unsupported.push((entry, urn));
                }
                continue;
            };
            if seen.contains(&index) {
                problems.note(|| {
                    let message = format!("`{urn}` is repeated");
                    let error = ErrorObject::new(ErrorCode::InvalidRequest, message);
                    error.at(extension_pointer(entry))
                });
                continue;
            }
            seen.push(index);
            if input
                .function
                .is_some_and(|function| !function.takes(index))
            {
                problems.note(|| not_applicable(urn, request, extension_pointer(entry)));
                continue;
            }
            let call = input.extension(&extension.urn, extension.options.as_ref(), Some(entry));
            match self.extensions.all[index].prepare(&call) {
                Ok(around) => plan.push(Step { index, around }),
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
        plan.extend(self.trace_from_header(input, &seen));
        plan
    }

    /// `tracing` for a request that does not name it, but has a `traceparent` header.
    fn trace_from_header(&self, input: &CheckInput<'_>, seen: &[usize]) -> Option<Step> {
        Trace::from_traceparent(input.traceparent?)?;
        let index = self.extensions.find(Tracing::URN)?;
        if seen.contains(&index) {
            return None;
        }
        let urn = Urn::parse(Tracing::URN).ok()?;
        // Without an index: it was not asked for, and adds nothing to the answer.
        let call = input.extension(&urn, None, None);
        let around = self.extensions.all[index].prepare(&call).ok()?;
        Some(Step { index, around })
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

    /// Runs work to completion even if its caller disconnects: in a task of its own from the start if `in_own_task`, else from the
    /// moment at which it has to wait. `None` if it panics.
    pub(crate) async fn run_to_completion<W>(
        &self,
        mut work: ToCompletion<W>,
        in_own_task: bool,
    ) -> Option<W::Output>
    where
        W: Future<Output: Send> + Send + 'static,
    {
        if !in_own_task && let Poll::Ready(done) = poll!(&mut work) {
            return done;
        }
        self.tasks.spawn(work.in_current_span()).await.ok()?
    }
}

/// Work for [`Core::run_to_completion`]. It is boxed here, so that futures that contain it stay small. `None` if it panics.
pub(crate) struct ToCompletion<W>(Pin<Box<CatchUnwind<AssertUnwindSafe<W>>>>);

impl<W: Future> ToCompletion<W> {
    pub(crate) fn new(work: W) -> Self {
        Self(Box::pin(AssertUnwindSafe(work).catch_unwind()))
    }
}

impl<W: Future> Future for ToCompletion<W> {
    type Output = Option<W::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Result::ok)
    }
}

/// The response to a request that is refused before its extensions are checked.
fn refused(request: Request<'_>, refusal: ErrorObject) -> Box<Response> {
    let response = Response::failure(Some(request.id), refusal);
    let requested: Vec<Urn> = request.extensions.into_iter().map(|e| e.urn).collect();
    with_guidance(response, &requested).into()
}

/// Adds the data of `retry` to the response of a request that is refused, if it has asked for it.
fn with_guidance(response: Response, requested: &[Urn]) -> Response {
    let is_retry = |urn: &&Urn| [Retry::URN, Retry::ALIAS].contains(&urn.as_str());
    let Some(urn) = requested.iter().find(is_retry) else {
        return response;
    };
    let data = response.result().err().map(guidance);
    match data.map(|data| RawObject::from_serialize(&data)) {
        Some(Ok(data)) => response.with_extension(urn.clone(), data),
        _ => response,
    }
}

/// The response to an invalid envelope, with at most `max_errors` errors.
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
