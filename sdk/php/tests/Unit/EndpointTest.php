<?php

declare(strict_types=1);

namespace Forrst\Tests\Unit;

use Forrst\Client;
use Forrst\Exception\Configuration;
use Forrst\Internal\Endpoint;
use PHPUnit\Framework\TestCase;

final class EndpointTest extends TestCase
{
    public function testAddresses(): void
    {
        $addresses = [
            'http://localhost:7420' => ['tcp://localhost:7420', '/forrst', false],
            'http://localhost/' => ['tcp://localhost:80', '/forrst', false],
            'https://a.example/locks/' => ['tcp://a.example:443', '/locks/forrst', true],
            'https://a.example/forrst' => ['tcp://a.example:443', '/forrst', true],
            'http://[::1]:7420' => ['tcp://[::1]:7420', '/forrst', false],
            'unix:/run/forrst.sock' => ['unix:///run/forrst.sock', '', false],
            'unix:///run/forrst.sock' => ['unix:///run/forrst.sock', '', false],
        ];
        foreach ($addresses as $url => $expected) {
            $endpoint = Endpoint::parse($url);
            self::assertSame($expected, [$endpoint->address, $endpoint->path, $endpoint->isEncrypted], $url);
        }
        self::assertSame('::1', Endpoint::parse('http://[::1]:7420')->host);
    }

    public function testOtherUrlsAreRefused(): void
    {
        $urls = [
            '', 'localhost:7420', 'ftp://localhost', 'http://', 'http://host/?a=b', 'http://host/#a', 'unix:run/forrst.sock',
            'unix://host/run/forrst.sock', 'unix:', "http://host/\r\nX: y", 'http:///path', 'http://host:99999999',
        ];
        foreach ($urls as $url) {
            try {
                Endpoint::parse($url);
                self::fail("accepted: $url");
            } catch (Configuration $error) {
                self::assertStringContainsString($url, $error->getMessage());
            }
        }
    }

    public function testSecretsAreNotRepeatedInErrors(): void
    {
        foreach ([fn () => new Client('http://me:secret@host'), fn () => new Client('http://host', "secret\n")] as $new) {
            try {
                $new();
                self::fail('it was accepted');
            } catch (Configuration $error) {
                self::assertStringNotContainsString('secret', $error->getMessage());
            }
        }
    }

    public function testAFileThatDoesNotExistIsNamed(): void
    {
        $this->expectException(Configuration::class);
        $this->expectExceptionMessage('`caFile`');
        new Client('https://host', caFile: '/does/not/exist.pem');
    }
}
