<?php

declare(strict_types=1);

namespace Forrst\Tests\Support;

use OpenSSLAsymmetricKey;
use OpenSSLCertificate;

/**
 * Certificates of an authority of their own: for a server on this machine, and for a client with the name `php`.
 */
final class Certificates
{
    public readonly string $authority;
    public readonly string $server;
    public readonly string $serverKey;
    public readonly string $client;
    public readonly string $clientKey;
    private readonly Folder $folder;

    public function __construct()
    {
        $this->folder = new Folder();
        file_put_contents("{$this->folder->path}/openssl.cnf", <<<'INI'
            [req]
            distinguished_name = name
            [name]
            [ca]
            basicConstraints = critical, CA:true
            keyUsage = critical, keyCertSign
            [server]
            subjectAltName = IP:127.0.0.1
            extendedKeyUsage = serverAuth
            [client]
            subjectAltName = DNS:php
            extendedKeyUsage = clientAuth
            INI);
        [$ca, $caKey, $this->authority] = $this->certificate('ca', 'Test authority');
        [, , $this->server, $this->serverKey] = $this->certificate('server', '127.0.0.1', $ca, $caKey);
        [, , $this->client, $this->clientKey] = $this->certificate('client', 'php', $ca, $caKey);
    }

    /** @return array{OpenSSLCertificate, OpenSSLAsymmetricKey, string, string} */
    private function certificate(
        string $kind,
        string $name,
        ?OpenSSLCertificate $ca = null,
        ?OpenSSLAsymmetricKey $caKey = null,
    ): array {
        $options = [
            'config' => "{$this->folder->path}/openssl.cnf", 'digest_alg' => 'sha256', 'x509_extensions' => $kind,
            'private_key_bits' => 2048, 'private_key_type' => OPENSSL_KEYTYPE_EC, 'curve_name' => 'prime256v1',
        ];
        $key = openssl_pkey_new($options);
        $request = openssl_csr_new(['commonName' => $name], $key, $options);
        $certificate = openssl_csr_sign($request, $ca, $caKey ?? $key, 30, $options, random_int(1, PHP_INT_MAX));
        $file = "{$this->folder->path}/$kind";
        openssl_x509_export_to_file($certificate, "$file.pem");
        openssl_pkey_export_to_file($key, "$file.key", null, $options);
        return [$certificate, $key, "$file.pem", "$file.key"];
    }
}
