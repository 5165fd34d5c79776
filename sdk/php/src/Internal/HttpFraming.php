<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\NotUnderstood;

/**
 * `POST /forrst`, over HTTP/1.1.
 *
 * @internal
 */
final class HttpFraming implements Framing
{
    private const MAX_HEAD = 65_536;

    public function __construct(private readonly Endpoint $endpoint, private readonly Settings $settings)
    {
    }

    public function request(string $body): string
    {
        return "POST {$this->endpoint->path} HTTP/1.1\r\nHost: {$this->endpoint->authority}\r\n"
            . "Content-Type: application/json\r\nAccept: application/json\r\nUser-Agent: forrst-php\r\n"
            . $this->settings->authorization() . 'Content-Length: ' . strlen($body) . "\r\n\r\n" . $body;
    }

    public function answer(string &$received, bool $isClosed): ?array
    {
        do {
            $end = strpos($received, "\r\n\r\n");
            if ($end === false) {
                if (strlen($received) > self::MAX_HEAD) {
                    throw new NotUnderstood('the answer is not HTTP: its head is too long');
                }
                return null;
            }
            [$version, $status, $headers] = self::head(substr($received, 0, $end));
            $start = $end + 4;
            $isInformational = $status < 200;
            if ($isInformational) {
                $received = substr($received, $start);
            }
        } while ($isInformational);
        $body = self::body($received, $start, $status, $headers, $isClosed);
        if ($body === null) {
            return null;
        }
        $connection = strtolower($headers['connection'] ?? '');
        $isKept = $version === '1.1' && !str_contains($connection, 'close') && !$isClosed;
        $received = substr($received, $start);
        return [new Answer($status, $body, self::retryAfter($headers['retry-after'] ?? '')), $isKept];
    }

    /** @return array{string, int, array<string, string>} */
    private static function head(string $head): array
    {
        $lines = explode("\r\n", $head);
        if (preg_match('~^HTTP/(1\.[01]) ([1-5]\d\d)(?: |$)~', (string) array_shift($lines), $found) !== 1) {
            throw new NotUnderstood('the answer is not HTTP/1');
        }
        $headers = [];
        foreach ($lines as $line) {
            [$name, $value] = explode(':', $line, 2) + [1 => ''];
            $headers[strtolower($name)] = trim($value);
        }
        return [$found[1], (int) $found[2], $headers];
    }

    /**
     * The body, and in `$start` where it ends; null if it is not complete.
     *
     * @param array<string, string> $headers
     */
    private static function body(string $received, int &$start, int $status, array $headers, bool $isClosed): ?string
    {
        if (in_array($status, [204, 304], true)) {
            return '';
        }
        $encoding = strtolower($headers['transfer-encoding'] ?? 'identity');
        if ($encoding === 'chunked') {
            return self::chunks($received, $start);
        }
        if ($encoding !== 'identity') {
            throw new NotUnderstood("the answer has the transfer encoding $encoding");
        }
        $length = $headers['content-length'] ?? null;
        if ($length === null) {
            if (strlen($received) - $start > self::MAX_ANSWER) {
                throw self::tooLarge();
            }
            return $isClosed ? self::take($received, $start, strlen($received) - $start) : null;
        }
        if (preg_match('/^\d{1,18}$/D', $length) !== 1) {
            throw new NotUnderstood('the answer has no valid length');
        }
        if ((int) $length > self::MAX_ANSWER) {
            throw self::tooLarge();
        }
        return strlen($received) - $start < (int) $length ? null : self::take($received, $start, (int) $length);
    }

    private static function chunks(string $received, int &$start): ?string
    {
        $body = '';
        $at = $start;
        while (($end = strpos($received, "\r\n", $at)) !== false) {
            if (preg_match('/^([0-9a-f]{1,8})\s*(?:;.*)?$/Di', substr($received, $at, $end - $at), $found) !== 1) {
                throw new NotUnderstood('the answer has an invalid chunk');
            }
            $size = (int) hexdec($found[1]);
            $at = $end + 2;
            if (strlen($body) + $size > self::MAX_ANSWER) {
                throw self::tooLarge();
            }
            if ($size === 0) {
                // Trailers, and an empty line after them.
                $last = strpos($received, "\r\n\r\n", $end);
                if ($last === false) {
                    return null;
                }
                $start = $last + 4;
                return $body;
            }
            if (strlen($received) < $at + $size + 2) {
                return null;
            }
            $body .= substr($received, $at, $size);
            $at += $size + 2;
        }
        return null;
    }

    private static function take(string $received, int &$start, int $length): string
    {
        $body = substr($received, $start, $length);
        $start += $length;
        return $body;
    }

    private static function retryAfter(string $value): ?float
    {
        if (preg_match('/^\d{1,9}$/D', $value) === 1) {
            return (float) $value;
        }
        $at = $value === '' ? false : strtotime($value);
        return $at === false ? null : max(0.0, (float) ($at - time()));
    }

    private static function tooLarge(): NotUnderstood
    {
        return new NotUnderstood('the answer is larger than ' . self::MAX_ANSWER . ' bytes');
    }
}
