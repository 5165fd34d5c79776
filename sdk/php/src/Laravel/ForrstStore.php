<?php

declare(strict_types=1);

namespace Forrst\Laravel;

use BadMethodCallException;
use Forrst\Client;
use Illuminate\Contracts\Cache\LockProvider;
use Illuminate\Contracts\Cache\Repository;
use Illuminate\Contracts\Cache\Store;

/**
 * A store of Laravel's cache whose locks are kept by a server of Forrst, and whose values by another store.
 */
final class ForrstStore implements Store, LockProvider
{
    /**
     * @param string $prefix put before the names of locks
     * @param Repository|null $values the cache for values; without one, only locks can be used
     * @param int|float $longest for how many seconds a lock without an end is held
     * @param string|null $note what `forrst locks` shows as the holder of each lock
     */
    public function __construct(
        private readonly Client $client,
        private readonly string $prefix = '',
        private readonly ?Repository $values = null,
        private readonly int|float $longest = 86_400,
        private readonly ?string $note = null,
    ) {
    }

    /** The client, for everything that Laravel's interface does not have. */
    public function client(): Client
    {
        return $this->client;
    }

    /**
     * @param string $name
     * @param int $seconds
     * @param string|null $owner
     */
    public function lock($name, $seconds = 0, $owner = null): ForrstLock
    {
        return new ForrstLock($this->client, $this->prefix . $name, (int) $seconds, $owner, $this->longest, $this->note);
    }

    /**
     * @param string $name
     * @param string $owner
     */
    public function restoreLock($name, $owner): ForrstLock
    {
        return $this->lock($name, 0, $owner);
    }

    public function getPrefix(): string
    {
        return $this->values?->getStore()->getPrefix() ?? $this->prefix;
    }

    /** @param string|array<string> $key */
    public function get($key): mixed
    {
        return $this->store()->get($key);
    }

    /**
     * @param array<string> $keys
     * @return array<string, mixed>
     */
    public function many(array $keys): array
    {
        return $this->store()->many($keys);
    }

    /**
     * @param string $key
     * @param mixed $value
     * @param int $seconds
     */
    public function put($key, $value, $seconds): bool
    {
        return $this->store()->put($key, $value, $seconds);
    }

    /**
     * @param array<string, mixed> $values
     * @param int $seconds
     */
    public function putMany(array $values, $seconds): bool
    {
        return $this->store()->putMany($values, $seconds);
    }

    /**
     * In the way of the other store, which may be atomic.
     *
     * @param string $key
     * @param mixed $value
     * @param int $seconds
     */
    public function add($key, $value, $seconds): bool
    {
        return $this->values()->add($key, $value, $seconds);
    }

    /**
     * @param string $key
     * @param mixed $value
     */
    public function increment($key, $value = 1): int|float|bool
    {
        return $this->store()->increment($key, $value);
    }

    /**
     * @param string $key
     * @param mixed $value
     */
    public function decrement($key, $value = 1): int|float|bool
    {
        return $this->store()->decrement($key, $value);
    }

    /**
     * @param string $key
     * @param mixed $value
     */
    public function forever($key, $value): bool
    {
        return $this->store()->forever($key, $value);
    }

    /**
     * @param string $key
     * @param int $seconds
     */
    public function touch($key, $seconds): bool
    {
        $store = $this->store();
        // Newer versions of Laravel's contract have it.
        return method_exists($store, 'touch') ? $store->touch($key, $seconds) : $this->put($key, $this->get($key), $seconds);
    }

    /** @param string $key */
    public function forget($key): bool
    {
        return $this->store()->forget($key);
    }

    public function flush(): bool
    {
        return $this->store()->flush();
    }

    private function store(): Store
    {
        return $this->values()->getStore();
    }

    private function values(): Repository
    {
        return $this->values ?? throw new BadMethodCallException(
            'This cache store keeps only locks: name the store for values as `store` in its configuration, '
            . 'such as `\'forrst\' => [\'driver\' => \'forrst\', \'store\' => \'redis\']`',
        );
    }
}
