<?php

declare(strict_types=1);

namespace Forrst;

/**
 * What a withdrawn attempt had.
 */
enum Withdrawn: string
{
    /** The lock, which is released now. */
    case Held = 'held';
    /** A position in the queue, which it has left. */
    case Waiting = 'waiting';
    /** Nothing: it was never granted, has ended, or has not arrived. */
    case Unknown = 'unknown';
}
