"""Tables, timelines and pages made from traces and ledgers; needs no torch."""
