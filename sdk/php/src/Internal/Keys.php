<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\InvalidRequest;
use Forrst\Key;
use Forrst\Mode;

/**
 * `key` or `keys`, and `mode` or `limit`, as the options of a lock and the arguments of `acquire` have them.
 *
 * @internal
 */
final class Keys
{
    /**
     * @param string|list<string|Key> $keys
     * @return array<string, mixed>
     */
    public static function toWire(string|array $keys, bool $shared, ?int $limit): array
    {
        if (is_array($keys)) {
            foreach ($keys as $key) {
                if (!is_string($key) && !$key instanceof Key) {
                    throw new InvalidRequest('a key has to be a string or a `Forrst\Key`, not ' . get_debug_type($key));
                }
            }
            $wire = ['keys' => array_values($keys)];
        } else {
            $wire = ['key' => $keys];
        }
        if ($shared) {
            $wire['mode'] = Mode::Shared;
        }
        if ($limit !== null) {
            $wire['limit'] = $limit;
        }
        return $wire;
    }

    /**
     * The first key, which stands for all of them in requests about the lease.
     *
     * @param string|list<string|Key> $keys
     */
    public static function first(string|array $keys): string
    {
        $first = is_array($keys) ? reset($keys) : $keys;
        return $first instanceof Key ? $first->key : (string) $first;
    }
}
