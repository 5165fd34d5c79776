<?php

declare(strict_types=1);

namespace Forrst;

/**
 * How a lock is held.
 */
enum Mode: string
{
    /** By one lease. */
    case Exclusive = 'exclusive';
    /** By any number of shared leases. */
    case Shared = 'shared';
}
