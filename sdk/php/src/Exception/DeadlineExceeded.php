<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The deadline passed, here or on the server (`DEADLINE_EXCEEDED`). The function may have run, unless {@see mayHaveRun()} says no.
 */
final class DeadlineExceeded extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return $this->failure !== null || $this->getPrevious() instanceof Interrupted;
    }
}
