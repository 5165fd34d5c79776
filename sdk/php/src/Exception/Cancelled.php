<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The call was cancelled by its token (`CANCELLED`). The function may have run.
 */
final class Cancelled extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return true;
    }
}
