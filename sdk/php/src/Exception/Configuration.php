<?php

declare(strict_types=1);

namespace Forrst\Exception;

/**
 * The client cannot be set up: its URL, its certificates or its key are invalid.
 */
final class Configuration extends ForrstException
{
    public function mayHaveRun(): bool
    {
        return false;
    }
}
