"""Functions for operators: read the state and the history of names, and carry out actions.

The command `manage.py locks`, the admin pages, and the metrics show what these modules return:

    status      Reads the state of names: holders, waiters, shares. A quorum is shown as one lock.
    facts       The state of names as dataclasses.
    names       Lists the known names: those in use, held, in the settings, or with an override.
    listing     Sorted lists of names, or of a policy's keys, page by page.
    history     Counters per minute of a name, with peaks and a suggested limit.
    statistics  Counters of groups of names: of a policy, a name template, or the whole site.
    reads       Sends reading commands, with a cache for pages that refresh themselves.
    formats     Durations and times for people, and JSON for machines.

    actions     Clears holders; pauses, resumes, resizes, and resets names.
    audit       The record of these actions.

    doctor/     Examines the Redis server, and says what to change.
"""
