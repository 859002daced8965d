//! fairgate's configuration: gateway and fairness YAML, typed, defaulted, validated.
