<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The server cannot serve now (`UNAVAILABLE`, maintenance).
 */
final class Unavailable extends ForrstException
{
    /**
     * `UNAVAILABLE` is also the answer when a server that shuts down ends the function. The function did not begin if its lock was
     * not acquired, or if the server did not even read the request.
     */
    public function mayHaveRun(): bool
    {
        return $this->errorCode() === 'UNAVAILABLE'
            && $this->failure?->hasAcquiredLock() !== false
            && $this->failure?->response->id !== null;
    }
}
