<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\Interrupted;
use Forrst\Exception\Unreachable;

/**
 * One connection to the server. Nothing here waits beyond the time that it is given.
 *
 * @internal
 */
final class Connection
{
    private const CHUNK = 65_536;

    /** Bytes that arrived and were not read yet. */
    public string $received = '';

    public float $idleSince = 0.0;

    /** @param resource $stream */
    private function __construct(private $stream)
    {
    }

    /** Connects, and finishes the TLS handshake. */
    public static function open(Endpoint $endpoint, Settings $settings, float $until): self
    {
        $until = min($until, Clock::now() + $settings->connectTimeout);
        $context = stream_context_create($endpoint->isEncrypted ? $settings->tls((string) $endpoint->host) : []);
        [$stream, $why] = self::quietly(static fn () => stream_socket_client(
            $endpoint->address,
            timeout: max(0.001, $until - Clock::now()),
            context: $context,
        ));
        if ($stream === false) {
            throw new Unreachable("the server cannot be reached: $why");
        }
        stream_set_blocking($stream, false);
        $connection = new self($stream);
        if ($endpoint->isEncrypted) {
            $connection->encrypt($until);
        }
        return $connection;
    }

    private function encrypt(float $until): void
    {
        do {
            [$done, $why] = self::quietly(fn () => stream_socket_enable_crypto(
                $this->stream,
                true,
                STREAM_CRYPTO_METHOD_TLSv1_2_CLIENT | STREAM_CRYPTO_METHOD_TLSv1_3_CLIENT,
            ));
            if ($done === false) {
                throw new Unreachable("the server cannot be reached: the TLS handshake failed: $why");
            }
            if ($done === 0 && !$this->wait($until)) {
                throw new Unreachable('the server cannot be reached: the TLS handshake took too long');
            }
        } while ($done !== true);
    }

    /** Whether it is open, with nothing to read that nobody asked for. */
    public function isIdle(): bool
    {
        [$bytes] = self::quietly(fn () => fread($this->stream, self::CHUNK));
        return $this->received === '' && ($bytes === '' || $bytes === false) && !feof($this->stream);
    }

    /** Writes it all. */
    public function write(string $bytes, float $until): void
    {
        $written = 0;
        while ($written < strlen($bytes)) {
            [$count, $why] = self::quietly(fn () => fwrite($this->stream, substr($bytes, $written, self::CHUNK)));
            if ($count === false || ($count === 0 && feof($this->stream))) {
                if ($written === 0) {
                    throw new Unreachable("the server cannot be reached: the connection is closed: $why");
                }
                // The server may have answered before it has read everything, so there may be something to read.
                return;
            }
            $written += $count;
            if ($count === 0 && !$this->wait($until, forWriting: true)) {
                throw self::lost('the request could not be written in time');
            }
        }
    }

    /** Reads what has arrived, and waits for it until then. False if nothing has. */
    public function read(float $until): bool
    {
        do {
            [$bytes] = self::quietly(fn () => fread($this->stream, self::CHUNK));
            if (is_string($bytes) && $bytes !== '') {
                $this->received .= $bytes;
                return true;
            }
            if (feof($this->stream)) {
                throw self::lost('the connection was closed');
            }
        } while ($this->wait($until));
        return false;
    }

    /** The stream, to wait for several of them. */
    public function stream(): mixed
    {
        return $this->stream;
    }

    public function close(): void
    {
        if (is_resource($this->stream)) {
            self::quietly(fn () => fclose($this->stream));
        }
    }

    public static function lost(string $why): Interrupted
    {
        return new Interrupted("no answer came, and the request may have been carried out: $why");
    }

    /** Whether there is something to read before that time. */
    private function wait(float $until, bool $forWriting = false): bool
    {
        do {
            $read = $forWriting ? [] : [$this->stream];
            $write = $forWriting ? [$this->stream] : [];
            $ready = self::select($read, $write, $until - Clock::now());
            if ($ready === null) {
                return Clock::now() < $until;
            }
            if ($ready > 0) {
                return true;
            }
        } while (Clock::now() < $until);
        return false;
    }

    /**
     * Waits until one of the streams is ready; the number of them. Null if PHP cannot tell: a signal has arrived, or the program has
     * more files open than `select` can count.
     *
     * @param array<resource> $read
     * @param array<resource> $write
     */
    public static function select(array $read, array $write, float $seconds): ?int
    {
        if ($read === [] && $write === []) {
            usleep((int) (max(0.0, min($seconds, 1.0)) * 1e6));
            return 0;
        }
        // No longer than a second at once: the clock of the system call stops while the machine sleeps.
        $microseconds = (int) ceil(max(0.0, min($seconds, 1.0)) * 1e6);
        $except = null;
        [$ready] = self::quietly(static function () use (&$read, &$write, &$except, $microseconds): int|false {
            return stream_select($read, $write, $except, intdiv($microseconds, 1_000_000), $microseconds % 1_000_000);
        });
        if ($ready === false) {
            usleep(1_000);
            return null;
        }
        return $ready;
    }

    /**
     * Calls it, and returns its result and the warning that PHP has for it, whatever the application does with warnings.
     *
     * @return array{mixed, string}
     */
    private static function quietly(callable $function): array
    {
        $why = [];
        set_error_handler(static function (int $level, string $message) use (&$why): bool {
            $why[] = preg_replace('/^\w+\(\): /', '', $message);
            return true;
        });
        try {
            return [$function(), implode('; ', $why)];
        } finally {
            restore_error_handler();
        }
    }
}
