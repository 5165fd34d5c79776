<?php

declare(strict_types=1);

namespace Forrst;

use Forrst\Internal\Duration;
use Forrst\Internal\Keys;

/**
 * The lock that a call runs under: `$client->call('payments.charge', $charge, lock: new Lock('user:123', ttl: 30, wait: 5))`.
 *
 * The server takes it before the function begins, and releases it when the function has ended.
 */
final class Lock
{
    public const URN = 'urn:forrst:ext:atomicLock';

    /** @internal Both names of the extension. */
    public const URNS = [self::URN, 'urn:cline:forrst:ext:atomic-lock'];

    /**
     * @param string|list<string|Key> $key one key, or a list of 2 to 16, of which all are held or none
     * @param int|float $ttl for how many seconds it is held at most
     * @param int|float|null $wait for how many seconds to wait in the queue when it is held; by default not at all
     * @param bool $shared hold it together with other shared leases, but never beside an exclusive one
     * @param int|null $limit let at most so many leases hold it at once: a counting semaphore
     * @param bool $global lock the key for callers of all functions, not only of this one
     * @param string|null $owner the token that the lock is released with; random by default
     * @param bool $keep keep the lock after the function has ended, until its owner releases it or it expires
     * @param bool $renew let the server extend the lock while the function runs
     * @param string|null $note who or what holds it, for people; not secret
     */
    public function __construct(
        public readonly string|array $key,
        public readonly int|float $ttl = Client::DEFAULT_TTL,
        public readonly int|float|null $wait = null,
        public readonly bool $shared = false,
        public readonly ?int $limit = null,
        public readonly bool $global = false,
        public readonly ?string $owner = null,
        public readonly bool $keep = false,
        public readonly bool $renew = false,
        public readonly ?string $note = null,
    ) {
    }

    /**
     * The extension of the request, with what is left of the wait.
     *
     * @internal
     * @return array{urn: string, options: array<string, mixed>}
     */
    public function toExtension(?float $wait): array
    {
        $options = Keys::toWire($this->key, $this->shared, $this->limit) + [
            'ttl' => Duration::toWire(Duration::given($this->ttl, 'ttl')),
            'scope' => $this->global ? 'global' : 'function',
            'auto_release' => !$this->keep,
            'renew' => $this->renew,
        ];
        if ($wait !== null) {
            $options['block'] = Duration::toWire($wait);
        }
        if ($this->owner !== null) {
            $options['owner'] = $this->owner;
        }
        if ($this->note !== null) {
            $options['note'] = $this->note;
        }
        return ['urn' => self::URN, 'options' => $options];
    }
}
