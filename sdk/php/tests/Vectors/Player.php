<?php

declare(strict_types=1);

namespace Forrst\Tests\Vectors;

use Forrst\Acquire;
use Forrst\Client;
use Forrst\Exception\AlreadyReleased;
use Forrst\Exception\Contended;
use Forrst\Exception\DeadlineExceeded;
use Forrst\Exception\Forbidden;
use Forrst\Exception\ForrstException;
use Forrst\Exception\FunctionFailed;
use Forrst\Exception\Interrupted;
use Forrst\Exception\Lost;
use Forrst\Exception\Mismatch;
use Forrst\Exception\NotHeld;
use Forrst\Exception\NotUnderstood;
use Forrst\Exception\RateLimited;
use Forrst\Exception\Rejected;
use Forrst\Exception\TimedOut;
use Forrst\Exception\Unauthorized;
use Forrst\Exception\Unavailable;
use Forrst\Exception\Unreachable;
use Forrst\Key;
use Forrst\Lease;
use Forrst\Lock;
use RuntimeException;

/**
 * Does the steps of one vector for clients (`conformance/client`), and notes their outcomes.
 */
final class Player
{
    private readonly Client $client;
    private ?Lease $lease = null;

    /** @param array<string, mixed> $settings */
    public function __construct(string $url, array $settings)
    {
        $this->client = new Client(
            $url,
            $settings['api_key'] ?? null,
            timeout: ($settings['timeout_ms'] ?? 60_000) / 1_000,
        );
    }

    /**
     * @param array<string, mixed> $options
     * @return array<string, mixed>
     */
    public function run(string $step, array $options): array
    {
        return match ($step) {
            'acquire' => self::outcome(fn (): array => $this->acquire($options)),
            'abandon' => $this->abandon($options),
            'hold' => $this->hold($options['for_ms'] / 1_000),
            'sleep' => $this->sleep($options['for_ms']),
            'is_held' => ['held' => (bool) $this->lease?->isHeld()],
            'release' => self::outcome(fn () => $this->lease?->release()),
            'drop' => self::outcome(function (): void {
                $this->lease = null;
            }),
            'release_by' => self::outcome(fn () => $this->client->locks()->release(
                $options['key'],
                $options['owner'],
                $options['fence'] ?? null,
            )),
            'call' => self::outcome(fn (): array => ['result' => (object) $this->call($options)]),
            'with_lock' => $this->withLock($options),
            'settle' => ['ok' => $this->client->settle(20)],
            default => throw new RuntimeException("unknown step $step"),
        };
    }

    /** @param array<string, mixed> $options */
    private function lock(array $options): Acquire
    {
        return $this->client->lock(
            self::keys($options),
            $options['ttl_ms'] / 1_000,
            isset($options['wait_ms']) ? $options['wait_ms'] / 1_000 : null,
            shared: $options['shared'] ?? false,
            limit: $options['limit'] ?? null,
            owner: $options['owner'] ?? null,
            note: $options['note'] ?? null,
            function: $options['function'] ?? null,
            deadline: isset($options['deadline_ms']) ? $options['deadline_ms'] / 1_000 : null,
            watch: $options['watch'] ?? false,
        );
    }

    /**
     * @param array<string, mixed> $options
     * @return array<string, mixed>
     */
    private function acquire(array $options): array
    {
        $this->lease = $this->lock($options)->acquire();
        return [
            'fence' => $this->lease->fence,
            'owner' => $this->lease->owner,
            'full_keys' => $this->lease->fullKeys,
            'remaining_ms' => (int) ($this->lease->remaining() * 1_000),
        ];
    }

    /**
     * A program in PHP gives up a wait in a signal handler.
     *
     * @param array<string, mixed> $options
     * @return array{abandoned: bool}
     */
    private function abandon(array $options): array
    {
        $parent = getmypid();
        pcntl_async_signals(true);
        pcntl_signal(SIGUSR1, static fn () => throw new RuntimeException('abandoned'));
        $child = pcntl_fork();
        if ($child === 0) {
            usleep($options['after_ms'] * 1_000);
            posix_kill($parent, SIGUSR1);
            // Without destructors: what this process has is its parent's.
            posix_kill((int) getmypid(), SIGKILL);
        }
        try {
            $this->lock($options)->acquire();
            return ['abandoned' => false];
        } catch (RuntimeException $why) {
            return ['abandoned' => $why->getMessage() === 'abandoned'];
        } finally {
            pcntl_waitpid($child, $status);
        }
    }

    /** @return array{lost: bool, after_ms: int, held: bool} */
    private function hold(float $seconds): array
    {
        $start = hrtime(true);
        try {
            $this->lease?->sleep($seconds);
            $lost = false;
        } catch (Lost) {
            $lost = true;
        }
        $after = intdiv(hrtime(true) - $start, 1_000_000);
        return ['lost' => $lost, 'after_ms' => $after, 'held' => (bool) $this->lease?->isHeld()];
    }

    /** @return array{ok: true} */
    private function sleep(int $milliseconds): array
    {
        usleep($milliseconds * 1_000);
        return ['ok' => true];
    }

    /** @param array<string, mixed> $options */
    private function call(array $options): mixed
    {
        $lock = $options['lock'] ?? null;
        return $this->client->call(
            $options['function'],
            $options['arguments'],
            lock: $lock === null ? null : new Lock(
                self::keys($lock),
                $lock['ttl_ms'] / 1_000,
                isset($lock['wait_ms']) ? $lock['wait_ms'] / 1_000 : null,
                $lock['shared'] ?? false,
                $lock['limit'] ?? null,
                $lock['global'] ?? false,
                $lock['owner'] ?? null,
                $lock['keep'] ?? false,
                $lock['renew'] ?? false,
                $lock['note'] ?? null,
            ),
            deadline: isset($options['deadline_ms']) ? $options['deadline_ms'] / 1_000 : null,
            idempotent: $options['idempotent'] ?? false,
        );
    }

    /**
     * @param array<string, mixed> $options
     * @return array<string, mixed>
     */
    private function withLock(array $options): array
    {
        $seen = ['body' => 'not_run'];
        $body = static function (Lease $lease) use ($options, &$seen): void {
            $seen = ['body' => 'cancelled', 'fence' => $lease->fence];
            $lease->sleep($options['body_ms'] / 1_000);
            if ($options['body_fails'] ?? false) {
                $seen['body'] = 'failed';
                throw new RuntimeException('body');
            }
            $seen['body'] = 'completed';
        };
        try {
            $outcome = self::outcome(fn () => $this->lock($options)->run($body));
            return $outcome + $seen;
        } catch (RuntimeException) {
            return ['ok' => false, 'error' => 'body'] + $seen;
        }
    }

    /**
     * @param array<string, mixed> $options
     * @return string|list<string|Key>
     */
    private static function keys(array $options): string|array
    {
        return $options['key'] ?? array_map(static fn (string|array $key): string|Key => match (true) {
            is_string($key) => $key,
            $key['shared'] ?? false => Key::shared($key['key']),
            isset($key['limit']) => Key::limit($key['key'], $key['limit']),
            default => Key::exclusive($key['key']),
        }, $options['keys']);
    }

    /**
     * @param callable(): (array<string, mixed>|null) $step
     * @return array<string, mixed>
     */
    private static function outcome(callable $step): array
    {
        try {
            return ['ok' => true] + ($step() ?? []);
        } catch (ForrstException $error) {
            $outcome = ['ok' => false, 'error' => match ($error::class) {
                Contended::class => 'contended',
                TimedOut::class => 'timed_out',
                Lost::class => 'lost',
                Mismatch::class => 'mismatch',
                NotHeld::class => 'not_held',
                AlreadyReleased::class => 'already_released',
                DeadlineExceeded::class => 'deadline',
                Unavailable::class => 'unavailable',
                RateLimited::class => 'rate_limited',
                Unauthorized::class => 'unauthorized',
                Forbidden::class => 'forbidden',
                Rejected::class => 'rejected',
                FunctionFailed::class => 'failed',
                Unreachable::class => 'unreachable',
                Interrupted::class => 'lost_answer',
                NotUnderstood::class => 'not_understood',
                default => $error::class,
            }];
            return $error->errorCode() === null ? $outcome : $outcome + ['code' => $error->errorCode()];
        }
    }
}
