<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\Configuration;

/**
 * The address of a server: a URL whose scheme selects the transport, and whose path gets the route.
 *
 * @internal
 */
final class Endpoint
{
    private function __construct(
        /** For `stream_socket_client`: `tcp://host:port` or `unix:///path`. */
        public readonly string $address,
        public readonly bool $isEncrypted = false,
        /** Null for a unix socket. */
        public readonly ?string $host = null,
        /** The value of the header `Host`. */
        public readonly string $authority = '',
        public readonly string $path = '',
    ) {
    }

    /** Parses the base URL of a server or that of its route, or `unix:` and the path of its socket. */
    public static function parse(string $url): self
    {
        if (str_starts_with($url, 'unix:')) {
            $path = preg_replace('~^//(?=/)~', '', substr($url, 5));
            if ($path === '' || $path[0] !== '/' || str_starts_with($path, '//')) {
                throw self::invalid($url, 'it needs the absolute path of a socket: write unix:/PATH');
            }
            return new self("unix://$path");
        }
        $parts = parse_url($url);
        if (isset($parts['user']) || isset($parts['pass'])) {
            // Not repeated, because it may be a secret.
            throw new Configuration('a URL must not have a user or a password: use `apiKey`');
        }
        if (preg_match('/[\x00-\x20\x7f]/', $url) === 1) {
            throw self::invalid($url, 'it has a space or a control character');
        }
        if (!is_array($parts) || !isset($parts['host'])) {
            throw self::invalid($url, 'it has no host');
        }
        if (isset($parts['query']) || isset($parts['fragment'])) {
            throw self::invalid($url, 'it must not have a query or a fragment');
        }
        $scheme = strtolower($parts['scheme'] ?? '');
        if (!in_array($scheme, ['http', 'https'], true)) {
            throw self::invalid($url, 'it must start with http, https or unix');
        }
        $isEncrypted = $scheme === 'https';
        if ($isEncrypted && !extension_loaded('openssl')) {
            throw new Configuration('https needs the PHP extension `openssl`');
        }
        $port = $parts['port'] ?? ($isEncrypted ? 443 : 80);
        $path = rtrim($parts['path'] ?? '', '/');
        return new self(
            "tcp://{$parts['host']}:$port",
            $isEncrypted,
            trim($parts['host'], '[]'),
            "{$parts['host']}:$port",
            str_ends_with($path, '/forrst') ? $path : "$path/forrst",
        );
    }

    private static function invalid(string $url, string $why): Configuration
    {
        return new Configuration("`$url` is not the URL of a server: $why");
    }
}
