<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The answer is not a Forrst answer, or not of the expected shape. The request may have been carried out.
 */
final class NotUnderstood extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return true;
    }
}
