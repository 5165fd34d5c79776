<?php

declare(strict_types=1);

namespace Forrst\Tests\Unit;

use Forrst\Exception\NotUnderstood;
use Forrst\Internal\Endpoint;
use Forrst\Internal\HttpFraming;
use Forrst\Internal\Settings;
use PHPUnit\Framework\TestCase;

final class HttpFramingTest extends TestCase
{
    private static function framing(): HttpFraming
    {
        $settings = new Settings(5.0, 'the-key', null, null, null);
        return new HttpFraming(Endpoint::parse('https://a.example/locks/'), $settings);
    }

    public function testARequest(): void
    {
        $request = self::framing()->request('{}');
        self::assertStringStartsWith("POST /locks/forrst HTTP/1.1\r\nHost: a.example:443\r\n", $request);
        self::assertStringContainsString("\r\nAuthorization: Bearer the-key\r\n", $request);
        self::assertStringEndsWith("\r\nContent-Length: 2\r\n\r\n{}", $request);
    }

    /** Every answer is also right if it arrives byte by byte. */
    public function testAnswers(): void
    {
        $answers = [
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody" => [200, 'body', true, null],
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody" => [200, 'body', true, null],
            "HTTP/1.1 503 \r\nRetry-After: 7\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" => [503, '', false, 7.0],
            "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nbody" => [200, 'body', false, null],
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2;x=y\r\ndy\r\n0\r\n\r\n" => [200, 'body', true, null],
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nA: b\r\n\r\n" => [200, 'body', true, null],
            "HTTP/1.1 204 No Content\r\n\r\n" => [204, '', true, null],
        ];
        foreach ($answers as $bytes => $expected) {
            $received = '';
            foreach (str_split($bytes) as $byte) {
                $received .= $byte;
                $answer = self::framing()->answer($received, false);
                if ($answer !== null) {
                    break;
                }
            }
            self::assertSame($expected, [$answer[0]->status, $answer[0]->body, $answer[1], $answer[0]->retryAfter], $bytes);
            self::assertSame('', $received);
        }
    }

    public function testABodyWithoutALengthEndsWithTheConnection(): void
    {
        $received = "HTTP/1.1 200 OK\r\n\r\nbody";
        self::assertNull(self::framing()->answer($received, false));
        self::assertSame('body', self::framing()->answer($received, true)[0]->body);
    }

    public function testWhatIsNotHttpIsNotUnderstood(): void
    {
        $wrong = [
            "SSH-2.0-OpenSSH\r\n\r\n", "HTTP/2 200\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", str_repeat('x', 70_000),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff0\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        ];
        foreach ($wrong as $received) {
            try {
                self::framing()->answer($received, false);
                self::fail("accepted: $received");
            } catch (NotUnderstood) {
                $this->addToAssertionCount(1);
            }
        }
    }
}
