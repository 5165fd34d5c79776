<?php

declare(strict_types=1);

namespace Forrst\Internal;

/**
 * How requests and answers are laid out on a connection.
 *
 * @internal
 */
interface Framing
{
    /** The largest answer that is read. */
    public const MAX_ANSWER = 64 * 1024 * 1024;

    /** The bytes of a request. */
    public function request(string $body): string;

    /**
     * Takes an answer from what was received.
     *
     * @param bool $isClosed whether nothing more will come
     * @return array{Answer, bool}|null the answer, and whether the connection can be used again; null if more has to come
     */
    public function answer(string &$received, bool $isClosed): ?array;
}
