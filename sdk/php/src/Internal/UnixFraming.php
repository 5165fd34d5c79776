<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\NotUnderstood;

/**
 * Frames on a unix socket: four bytes of length, big-endian, and the JSON. One request at a time is sent on a connection.
 *
 * @internal
 */
final class UnixFraming implements Framing
{
    public function request(string $body): string
    {
        return pack('N', strlen($body)) . $body;
    }

    public function answer(string &$received, bool $isClosed): ?array
    {
        if (strlen($received) < 4) {
            return null;
        }
        $length = unpack('N', $received)[1];
        if ($length > self::MAX_ANSWER) {
            throw new NotUnderstood('the answer is larger than ' . self::MAX_ANSWER . ' bytes');
        }
        if (strlen($received) < 4 + $length) {
            return null;
        }
        $body = substr($received, 4, $length);
        $received = substr($received, 4 + $length);
        return [new Answer(0, $body), !$isClosed];
    }
}
