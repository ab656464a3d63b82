"""What changes where one bundle replaces another: pictures, lips and flicker, measured on finished clips."""
