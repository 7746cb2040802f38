"""Who is let in where: route, access, throttle, target. Pure but for the name look-up in `targets`."""
