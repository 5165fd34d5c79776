<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The function itself failed: with a code of its own, or unexpectedly (`INTERNAL_ERROR`).
 */
final class FunctionFailed extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return true;
    }
}
