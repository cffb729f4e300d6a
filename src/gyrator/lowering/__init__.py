"""From functional ATen graphs to programs of loop nests.

    ATen node ──family table──▶ one nest per result │ an index map (views) │ an extern call (everything else)

Nothing is inlined here: ``lowering`` says what each op means, ``schedule`` decides what runs together."""
