<?php

declare(strict_types=1);

namespace Forrst;

use Forrst\Exception\Configuration;
use Forrst\Exception\NotUnderstood;
use Forrst\Internal\CallRun;
use Forrst\Internal\Clock;
use Forrst\Internal\Connector;
use Forrst\Internal\Duration;
use Forrst\Internal\Endpoint;
use Forrst\Internal\Settings;
use Forrst\Internal\Transport;

/**
 * A client of a Forrst server.
 *
 * It connects when it is used for the first time, and keeps its connections for the next requests. All times are in seconds.
 */
final class Client
{
    /** For how many seconds a lock is held if its caller names no `ttl`. */
    public const DEFAULT_TTL = 30;

    private readonly Connector $connector;

    /**
     * @param string $url `http://host:7420`, `https://host`, or `unix:/run/forrst.sock`
     * @param string|null $apiKey sent as `Authorization: Bearer …`; over http in cleartext, over a unix socket not at all
     * @param string|null $caFile the certificates of the authorities to trust, in PEM; by default those of the system
     * @param string|null $clientCertificate a certificate to authenticate with, in PEM
     * @param string|null $clientKey its private key, in PEM, unless it is in the same file
     * @param Retry|null $retry how requests are retried, where that is safe
     * @param int|float $connectTimeout how long connecting may take, TLS included
     * @param int|float $timeout how long an answer may take, in addition to the time that the request waits for a lock
     * @throws Configuration for settings that cannot be used
     */
    public function __construct(
        string $url,
        #[\SensitiveParameter]
        ?string $apiKey = null,
        ?string $caFile = null,
        ?string $clientCertificate = null,
        ?string $clientKey = null,
        ?Retry $retry = null,
        int|float $connectTimeout = 5,
        int|float $timeout = 60,
    ) {
        $settings = new Settings(
            Duration::given($connectTimeout, 'connectTimeout'),
            $apiKey,
            $caFile,
            $clientCertificate,
            $clientKey,
        );
        $this->connector = new Connector(
            new Transport(Endpoint::parse($url), $settings),
            $retry ?? new Retry(),
            Duration::given($timeout, 'timeout'),
        );
    }

    /**
     * A lock for work that runs here. Nothing is sent before it is acquired:
     *
     *     $client->lock('export:orders', ttl: 30)->block(5, fn (Lease $lease) => export($lease->fence));
     *
     * @param string|list<string|Key> $key the lock's own key (`export:orders`), not its full one; or a list of 2 to 16, of which all
     *   are held or none, in one step. No order of the keys can deadlock
     * @param int|float $ttl for how many seconds it is held, unless it is released before or renewed
     * @param int|float|null $wait for how many seconds to wait in the queue when it is held; by default not at all
     * @param bool $shared hold it together with other shared leases, but never beside an exclusive one
     * @param int|null $limit let at most so many leases hold it at once: a counting semaphore
     * @param string|null $owner the token that the lock is released with; random by default
     * @param string|null $note who or what holds it, for people; not secret
     * @param string|null $function take the lock that callers of this function share, instead of the global one
     * @param string|null $attempt names the acquisition, so that it can be repeated after a crash: the same owner with the same
     *   attempt gets the same lease. Random by default, which is enough for the retries of this client
     * @param int|float|null $deadline how many seconds the acquisition may take, retries included
     * @param bool $watch notice a forced release within a second, on a connection of its own, while the lease is asked or slept with
     * @param Retry|null $retry how the acquisition is retried; by default as the client is
     */
    public function lock(
        string|array $key,
        int|float $ttl = self::DEFAULT_TTL,
        int|float|null $wait = null,
        bool $shared = false,
        ?int $limit = null,
        ?string $owner = null,
        ?string $note = null,
        ?string $function = null,
        ?string $attempt = null,
        int|float|null $deadline = null,
        bool $watch = false,
        ?Retry $retry = null,
    ): Acquire {
        return new Acquire(
            $this->connector,
            $key,
            $ttl,
            $wait,
            $shared,
            $limit,
            $owner,
            $note,
            $function,
            $attempt,
            $deadline,
            $watch,
            $retry,
        );
    }

    /**
     * Takes a lock, calls `$body` with the lease, and releases the lock when it has ended.
     *
     * @template T
     * @param string|list<string|Key> $key
     * @param callable(Lease): T $body
     * @param mixed ...$options those of {@see lock()}, by name
     * @return T
     */
    public function withLock(string|array $key, callable $body, mixed ...$options): mixed
    {
        return $this->lock($key, ...$options)->run($body);
    }

    /**
     * Calls a function, and returns its result. The arguments are those of {@see Call}.
     *
     * By default it is retried only if the function certainly did not begin.
     *
     * @param array<string, mixed> $arguments
     * @param array<string, mixed>|null $context
     * @param list<array{urn: string, options?: array<string, mixed>, required?: bool}> $extensions
     */
    public function call(
        string $function,
        array $arguments = [],
        ?Lock $lock = null,
        int|float|null $deadline = null,
        bool $idempotent = false,
        ?string $version = null,
        ?array $context = null,
        ?string $cancellation = null,
        array $extensions = [],
        ?Retry $retry = null,
    ): mixed {
        return $this->response(new Call(
            $function,
            $arguments,
            $lock,
            $deadline,
            $idempotent,
            $version,
            $context,
            $cancellation,
            $extensions,
            $retry,
        ))->result;
    }

    /** Calls a function, and returns the whole answer: also the lock that it ran under, and the data of its extensions. */
    public function response(Call $call): Response
    {
        $this->connector->background->runDue();
        return (new CallRun($this->connector, $call))->run();
    }

    /**
     * Ends a call that has this cancellation token, on whichever server it runs: it answers `CANCELLED`.
     *
     * @throws Exception\FunctionFailed with the code `CANCELLATION_TOKEN_UNKNOWN` or `CANCELLATION_TOO_LATE`
     */
    public function cancel(string $token): void
    {
        $this->connector->ask('urn:cline:forrst:ext:cancellation:fn:cancel', ['token' => $token]);
    }

    /** Operations on locks by their full keys: status, list, waiters, release, extend, forced release. */
    public function locks(): Locks
    {
        return new Locks($this->connector);
    }

    /** Checks that the server answers, and returns how many seconds that took, retries included. */
    public function ping(): float
    {
        $sent = Clock::now();
        $this->connector->ask('urn:cline:forrst:fn:ping', []);
        return Clock::now() - $sent;
    }

    /**
     * The health of the server and its store: `status` is `healthy`, `degraded` or `unhealthy`.
     *
     * @return array<string, mixed>
     */
    public function health(): array
    {
        return $this->about('health');
    }

    /**
     * The server's protocol versions, functions, extensions and limits.
     *
     * @return array<string, mixed>
     */
    public function capabilities(): array
    {
        return $this->about('capabilities');
    }

    /**
     * The discovery document: of all functions, of one, or of one version of it.
     *
     * @return array<string, mixed>
     */
    public function describe(?string $function = null, ?string $version = null): array
    {
        $arguments = array_filter(
            ['function' => $function, 'version' => $version],
            static fn (?string $value): bool => $value !== null,
        );
        return $this->about('describe', $arguments);
    }

    /**
     * Finishes what this client still has to do: withdrawing acquisitions that were given up, and releasing leases that went out of
     * scope, where that did not succeed at once. Whether all of it is done.
     *
     * A client that is destroyed does this for a moment; call it at the end of a program that must not leave a lock behind.
     */
    public function settle(int|float $limit): bool
    {
        return $this->connector->background->settle(Duration::given($limit, 'limit'));
    }

    /**
     * @param array<string, mixed> $arguments
     * @return array<string, mixed>
     */
    private function about(string $function, array $arguments = []): array
    {
        $answer = $this->connector->ask("urn:cline:forrst:fn:$function", $arguments);
        return is_array($answer) ? $answer : throw new NotUnderstood("the answer to `$function` is not an object");
    }
}
