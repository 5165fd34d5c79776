<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\Configuration;
use WeakMap;

/**
 * How connections are made. The API key is not a property, so that no dump or serialisation shows it.
 *
 * @internal
 */
final class Settings
{
    /** @var WeakMap<self, string>|null The API keys of all settings. */
    private static ?WeakMap $apiKeys = null;

    public function __construct(
        public readonly float $connectTimeout,
        #[\SensitiveParameter]
        ?string $apiKey,
        private readonly ?string $caFile,
        private readonly ?string $clientCertificate,
        private readonly ?string $clientKey,
    ) {
        if ($apiKey !== null && preg_match('/^[\x21-\x7e]+$/D', $apiKey) !== 1) {
            throw new Configuration('the API key has to be printable ASCII without spaces');
        }
        self::$apiKeys ??= new WeakMap();
        if ($apiKey !== null) {
            self::$apiKeys[$this] = $apiKey;
        }
        $files = ['caFile' => $caFile, 'clientCertificate' => $clientCertificate, 'clientKey' => $clientKey];
        foreach ($files as $name => $file) {
            if ($file !== null && !is_readable($file)) {
                throw new Configuration("`$name`: the file $file cannot be read");
            }
        }
    }

    /** The header with the API key, and its line end. */
    public function authorization(): string
    {
        $apiKey = self::$apiKeys[$this] ?? null;
        return $apiKey === null ? '' : "Authorization: Bearer $apiKey\r\n";
    }

    /** @return array<string, array<string, mixed>> */
    public function tls(string $host): array
    {
        return ['ssl' => array_filter([
            'peer_name' => $host,
            'verify_peer' => true,
            'verify_peer_name' => true,
            'disable_compression' => true,
            'cafile' => $this->caFile,
            'local_cert' => $this->clientCertificate,
            'local_pk' => $this->clientKey,
        ], static fn (mixed $value): bool => $value !== null)];
    }
}
